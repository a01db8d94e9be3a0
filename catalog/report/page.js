// Runs in one script with Vega-Embed, which is not loaded from anywhere.
const charts = JSON.parse(document.getElementById("charts").textContent);
const config = {
  background: "transparent",
  font: "system-ui, sans-serif",
  view: { stroke: null },
  axis: { labelFontSize: 11, titleFontSize: 11, titleFontWeight: "normal", labelLimit: innerWidth < 640 ? 90 : 170, domain: false, ticks: false, labelPadding: 6 },
  axisX: { grid: false },
};
// `ast` interprets expressions instead of compiling them, so that the page can forbid eval.
const options = {
  config, actions: false, renderer: "svg", ast: true, defaultStyle: false,
  tooltip: { disableDefaultStyle: true, maxDepth: 0 },
};
const drawn = Object.entries(charts).map(async ([id, spec]) => {
  const place = document.getElementById(id);
  try {
    await vegaEmbed(place, spec, options);
  } catch (error) {
    place.textContent = `This chart could not be drawn: ${error}`;
    console.error(error);
  }
});
Promise.all(drawn).then(() => { document.documentElement.dataset.charts = "drawn"; });

const days = Math.floor((Date.now() - Date.parse(document.documentElement.dataset.made)) / 86_400_000);
if (days >= 1) {
  const stale = document.getElementById("stale");
  stale.textContent = `This page was made ${days === 1 ? "a day" : `${days} days`} ago: make it anew to see how things are now.`;
  stale.hidden = false;
}
