"""A report of a catalog: `gather` reads the facts, `findings` says what needs attention, `page` draws it all."""
