"""JSON that is stored and outlives this version: frozen models of exact types that keep unknown keys."""

import base64
import binascii
import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from catalog import keys
from catalog.errors import InvalidInputError


def _name(value: str) -> str:
    return keys.text(value, "name")


U16 = Annotated[int, Field(ge=0, le=2**16 - 1)]
U32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Field(ge=0, le=keys.U64_MAX)]
I64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Name = Annotated[str, AfterValidator(_name)]
Names = Annotated[list[Name], AfterValidator(lambda names: sorted(set(names)))]
Uuid7 = Annotated[str, AfterValidator(keys.uuid7)]


class StoredJson(BaseModel):
    """JSON with known fields of exact types, and unknown ones that are kept."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the manifest in this JSON text.

        Raises:
            InvalidInputError: it is not JSON, a required field is missing, or a value has the wrong type or range.
        """
        if not isinstance(text, str | bytes | bytearray):
            raise InvalidInputError(f"{cls.__name__}: JSON must be text or bytes, not {type(text).__name__}")
        try:
            parsed = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"{cls.__name__}: not JSON: {error}") from error
        return cls.from_dict(parsed)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the manifest with these fields; see from_json."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise InvalidInputError(_explain(cls.__name__, error)) from error

    @classmethod
    def _of(cls, fields: Mapping[str, Any]) -> Self:
        """Return the manifest with these fields, which may hold models."""
        try:
            return cls.from_dict(plain(fields))
        except RecursionError as error:
            raise InvalidInputError(f"{cls.__name__}: nested too deeply") from error

    @classmethod
    def _new(cls, given: Mapping[str, Any], known: Mapping[str, Any]) -> Self:
        """Return the manifest with what a caller gives; unknown keys are kept, but not those that are misspelled."""
        for name in sorted(given.keys() - cls.model_fields.keys()):
            if close := get_close_matches(name, cls.model_fields, n=1, cutoff=0.85):
                raise InvalidInputError(f"{cls.__name__} has no field {name!r}: perhaps {close[0]!r} is meant")
        return cls._of({**given, **known})

    def canonical(self) -> str:
        """Return the canonical JSON text: equal manifests give equal text."""
        try:
            text = json.dumps(
                self.model_dump(warnings=False),
                sort_keys=True,
                separators=(",", ":"),
                ensure_ascii=False,
                allow_nan=False,
            )
            text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(f"{type(self).__name__}: not representable as JSON: {error}") from error
        return text

    def checked(self) -> Self:
        """Return it validated again, because model_copy and model_construct validate nothing."""
        return self.from_json(self.canonical())


def decode_base64(text: str, what: str) -> bytes:
    """Return the bytes of padded standard base64, else refuse it."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputError(f"{what} is not base64: {error}") from error


def plain(value: Any) -> Any:
    """Return models inside maps and lists as plain JSON values, so that one validation sees everything."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple | set | frozenset) else value


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _explain(what: str, error: ValidationError) -> str:
    """Return one sentence for pydantic's findings."""
    found = error.errors(include_url=False)
    first = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'value'}: {one['msg']}" for one in found[:3])
    return f"{what}: {first}" + (f" (and {len(found) - 3} more)" if len(found) > 3 else "")
