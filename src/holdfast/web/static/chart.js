// Rate and lag since the page was opened, as a chart.
import { samplesOf, timeText } from "./decorate.js";

let plot = null;

// Both are sampled at once, but one of them may be unknown for some time.
function data(box) {
  const lag = new Map(samplesOf(box.dataset.second));
  const rate = new Map(samplesOf(box.dataset.chart));
  const times = [...new Set([...rate.keys(), ...lag.keys()])].sort((left, right) => left - right);
  return [times, times.map((at) => rate.get(at) ?? null), times.map((at) => lag.get(at) ?? null)];
}

function colour(name) {
  const probe = document.createElement("span");
  probe.className = name;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const fromZero = (_plot, _least, most) => [0, (most || 1) * 1.1];

// From the first sample, but at least a minute, so that the first ones do not look like a jump.
function lastMinute(shown) {
  const times = shown.data[0];
  const end = times.at(-1) ?? Date.now() / 1000;
  return [Math.min(times[0] ?? end, end - 60), end];
}

function options(box) {
  const axis = { stroke: colour("muted"), grid: { stroke: colour("probe-line"), width: 1 }, ticks: { show: false } };
  const short = (value) => (value >= 1e6 ? `${value / 1e6}M` : value >= 1e3 ? `${value / 1e3}k` : `${value}`);
  const clock = (_plot, ticks) => ticks.map((tick) => timeText(new Date(tick * 1000)).slice(11));
  const values = (_plot, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick)));
  return {
    width: box.clientWidth,
    height: box.clientHeight,
    cursor: { drag: { x: false, y: false } },
    scales: { x: { range: lastMinute }, y: { range: fromZero }, lag: { range: fromZero } },
    legend: { show: false },
    axes: [{ ...axis, values: clock }, { ...axis, values, size: 52 }, { ...axis, values, scale: "lag", side: 1, size: 52, grid: { show: false } }],
    series: [
      {},
      { label: "records/s", stroke: colour("probe-rate"), width: 2 },
      { label: "lag, records", stroke: colour("probe-lag"), width: 2, dash: [6, 4], scale: "lag" },
    ],
  };
}

export function start() {
  const box = document.querySelector("[data-chart]");
  const draw = () => {
    plot?.destroy();
    plot = new uPlot(options(box), data(box), box);
  };
  draw();
  document.addEventListener("holdfast:theme", draw);
  document.addEventListener("holdfast:zone", draw);
  document.addEventListener("holdfast:sample", () => plot.setData(data(box)));
  new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height: box.clientHeight })).observe(box);
}
