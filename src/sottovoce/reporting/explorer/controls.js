// Sliders with number boxes, most of them logarithmic, and the list of mechanisms.

import { element } from "/charts.js";

const SLIDERS = [
  { id: "epsilon", name: "Epsilon", unit: "over all rounds", low: 0.1, high: 50, log: true, least: 0, step: "any" },
  { id: "bits", name: "Bits", unit: "a coordinate", low: 1, high: 12, log: false, least: 1, step: 1 },
  { id: "dimension", name: "Dimension", unit: "coordinates", low: 1, high: 1e7, log: true, whole: true, least: 1, step: 1 },
  { id: "rounds", name: "Rounds", unit: "of one client", low: 1, high: 1e4, log: true, whole: true, least: 1, step: 1 },
  { id: "delta", name: "Delta", unit: "", low: 1e-10, high: 1e-2, log: true, least: 0, step: "any" },
  { id: "clip_norm", name: "Clip norm", unit: "", low: 0.01, high: 100, log: true, least: 0, step: "any" },
];

export const PRESETS = [
  { name: "A number in an interval", mechanism: "mvu", bits: 3, epsilon: 2, delta: 1e-5, rounds: 1, dimension: 1, clip_norm: 1, clip_geometry: "linf" },
  { name: "One bit of a model update", mechanism: "gauss_hermite", bits: 1, epsilon: 4, delta: 1e-5, rounds: 100, dimension: 10000, clip_norm: 1, clip_geometry: "l2" },
  { name: "Sixteen bytes in all", mechanism: "seeded_sign", bits: 1, epsilon: 4, delta: 1e-5, rounds: 100, dimension: 10000, clip_norm: 1, clip_geometry: "l2" },
  { name: "Integers for a secure sum", mechanism: "discrete_gaussian", bits: 6, epsilon: 8, delta: 1e-5, rounds: 10, dimension: 1000, clip_norm: 1, clip_geometry: "l2" },
];

const byId = (id) => document.getElementById(id);
const tidy = (value, whole) => {
  const short = Number(value.toPrecision(whole && value >= 100 ? 2 : 3));
  return whole ? Math.round(short) : short;
};

export class Controls {
  constructor(mechanisms, changed) {
    this.mechanisms = new Map(mechanisms.map((one) => [one.kind, one]));
    this.changed = changed;
    byId("mechanism").append(...mechanisms.map((one) => element("option", { value: one.kind }, one.kind)));
    byId("sliders").append(...SLIDERS.map((slider) => this.#slider(slider)));
    byId("presets").append(...PRESETS.map((preset) => this.#preset(preset)));
    byId("mechanism").addEventListener("change", () => this.#mechanismChosen());
    for (const id of ["variant", "clip_geometry", "adjacency", "slow"])
      byId(id).addEventListener("change", () => this.#tell());
    byId("controls").addEventListener("submit", (event) => event.preventDefault());
  }

  // The question, or null while a box has no number.
  question() {
    const asked = { mechanism: byId("mechanism").value, variant: Number(byId("variant").value || 0) };
    for (const { id } of SLIDERS) {
      asked[id] = byId(id).valueAsNumber;
      if (!Number.isFinite(asked[id])) return null;
    }
    for (const id of ["clip_geometry", "adjacency"]) asked[id] = byId(id).value;
    return { ...asked, slow: byId("slow").checked };
  }

  set(values) {
    if (this.mechanisms.has(values.mechanism)) byId("mechanism").value = values.mechanism;
    this.#describe();
    for (const slider of SLIDERS) if (Number.isFinite(values[slider.id])) this.#setNumber(slider, values[slider.id]);
    for (const id of ["variant", "clip_geometry", "adjacency"]) if (values[id] !== undefined) byId(id).value = values[id];
    byId("slow").checked = Boolean(values.slow);
    this.#tell();
  }

  #tell() {
    const now = this.question();
    for (const [n, preset] of PRESETS.entries()) {
      const same = now && Object.entries(preset).every(([key, value]) => key === "name" || now[key] === value);
      byId("presets").children[n].setAttribute("aria-pressed", String(Boolean(same)));
    }
    this.changed();
  }

  #preset(preset) {
    const button = element("button", { type: "button", "aria-pressed": "false" }, preset.name);
    button.addEventListener("click", () => this.set({ adjacency: "zero-out", variant: 0, ...preset }));
    return button;
  }

  #slider(slider) {
    const { id, name, unit, low, high, log, whole, least, step } = slider;
    const ends = log ? [Math.log10(low), Math.log10(high)] : [low, high];
    const label = element("label", { for: id }, name, " ", element("span", { class: "unit" }, unit));
    const box = element("input", { type: "number", id, min: least, step, required: "" });
    const range = element("input", {
      type: "range", id: `${id}-slider`, min: ends[0], max: ends[1], step: log ? 0.01 : 1, "aria-label": `${name} ${unit}`.trim(),
    });
    range.addEventListener("input", () => {
      box.value = log ? tidy(10 ** range.valueAsNumber, whole) : range.value;
      range.setAttribute("aria-valuetext", box.value);
      this.#tell();
    });
    box.addEventListener("input", () => {
      if (Number.isFinite(box.valueAsNumber)) this.#setRange(slider, box.valueAsNumber);
      this.#tell();
    });
    return element("div", { class: "slider", id: `${id}-field` }, label, box, range);
  }

  #setNumber(slider, value) {
    byId(slider.id).value = value;
    this.#setRange(slider, value);
  }

  #setRange({ id, log }, value) {
    const range = byId(`${id}-slider`);
    range.value = log ? Math.log10(Math.max(value, 1e-300)) : value;
    range.setAttribute("aria-valuetext", String(value));
  }

  // Change geometry and bits where the mechanism does not support the present ones.
  #mechanismChosen() {
    const chosen = this.#describe(), geometry = byId("clip_geometry");
    if (!chosen.geometries.includes(geometry.value) && !chosen.geometries.includes("l2"))
      geometry.value = chosen.geometries[0];
    const bits = SLIDERS.find((slider) => slider.id === "bits");
    const fewest = Math.min(...chosen.bits);
    if (chosen.bits.length && byId("bits").valueAsNumber < fewest) this.#setNumber(bits, fewest);
    this.#tell();
  }

  #describe() {
    const chosen = this.mechanisms.get(byId("mechanism").value), variant = byId("variant");
    const grade = { exact: "may be deployed", float: "for simulation only" }[chosen.sampling_grade];
    byId("summary").textContent = `${chosen.summary}. Sampling: ${chosen.sampling_grade}, ${grade}.`;
    variant.replaceChildren(...chosen.variants.map((words, n) => element("option", { value: n }, words || "the only one")));
    byId("variant-field").hidden = chosen.variants.length < 2;
    const fixed = chosen.bits_parameter === null;
    byId("bits-field").classList.toggle("idle", fixed);
    for (const id of ["bits", "bits-slider"]) byId(id).disabled = fixed;
    return chosen;
  }
}
