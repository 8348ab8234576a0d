document.querySelector("button.theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme:dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
// Each chart holds its points as JSON; a pointer over the chart shows the nearest point.
for (const svg of document.querySelectorAll("svg[data-points]")) {
  const chart = JSON.parse(svg.dataset.points), now = svg.closest("figure").querySelector(".now"), last = now.textContent;
  const cursor = svg.querySelector(".cursor");
  const text = (value) => chart.percent ? (100 * value).toFixed(1) + " %" : +value.toPrecision(4);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * chart.width;
    const share = Math.min(1, Math.max(0, (at - chart.left) / (chart.right - chart.left)));
    const x = chart.low + share * (chart.high - chart.low), parts = [];
    let nearest = null;
    for (const line of chart.lines) {
      if (!line.x.length) continue;
      let best = 0;
      line.x.forEach((value, i) => { if (Math.abs(value - x) < Math.abs(line.x[best] - x)) best = i; });
      if (nearest === null) nearest = line.x[best];
      if (!chart.percent || chart.lines.length < 4 || line.y[best] >= 0.01) parts.push((line.name ? line.name + " " : "") + text(line.y[best]));
    }
    if (nearest === null) return;
    const px = chart.left + (nearest - chart.low) / (chart.high - chart.low || 1) * (chart.right - chart.left);
    cursor.setAttribute("x1", px); cursor.setAttribute("x2", px); cursor.style.visibility = "visible";
    now.textContent = (+nearest.toPrecision(4)).toLocaleString("en") + " " + chart.unit + ":  " + parts.join("  ");
  });
  svg.addEventListener("pointerleave", () => { now.textContent = last; cursor.style.visibility = "hidden"; });
}
