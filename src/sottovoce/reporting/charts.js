"use strict";
// Make the charts, tables and switches of a page interactive. Nothing is fetched or stored.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const make = (name, attributes = {}, text) => {
    const svg = ["line", "circle", "g"].includes(name);
    const node = svg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };

  // -- charts ---------------------------------------------------------------------------------

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.plot = figure.querySelector(".plot");
      this.drawings = [...this.plot.querySelectorAll("svg")];
      this.buttons = [...figure.querySelectorAll(".legend button")];
      this.scales = [...figure.querySelectorAll(".scales button")];
      this.scale = Math.max(0, this.scales.findIndex((b) => b.ariaPressed === "true"));
      this.hidden = new Set();
      this.stop = null; // which of this.stops() the crosshair is at
      this.tip = make("div", { class: "tip", "aria-hidden": "true" });
      this.reading = make("div", { class: "unseen", "aria-live": "polite" });
      this.plot.append(this.tip, this.reading);
      this.plot.tabIndex = 0;
      this.listen();
    }

    listen() {
      this.buttons.forEach((button, number) =>
        button.addEventListener("click", () => this.toggle(number)));
      this.scales.forEach((button, number) =>
        button.addEventListener("click", () => this.rescale(number)));
      this.plot.addEventListener("pointermove", (event) => this.point(event));
      this.plot.addEventListener("pointerdown", (event) => this.point(event));
      this.plot.addEventListener("pointerleave", (event) => {
        if (event.pointerType === "mouse") this.leave();
      });
      this.plot.addEventListener("blur", () => this.leave());
      this.plot.addEventListener("keydown", (event) => this.key(event));
    }

    toggle(number) {
      const gone = !this.hidden.delete(number);
      if (gone) this.hidden.add(number);
      this.buttons[number].ariaPressed = String(!gone);
      for (const node of this.plot.querySelectorAll(`.s${number}`))
        node.style.display = gone ? "none" : "";
      this.leave();
    }

    rescale(number) {
      this.scale = number;
      this.scales.forEach((button, i) => { button.ariaPressed = String(i === number); });
      this.drawings.forEach((svg, i) => svg.toggleAttribute("hidden", i !== number));
      this.leave();
    }

    // Every place where something can be read: {x, at, marks: [{series, y, text}]}.
    stops() {
      const found = new Map();
      this.data.series.forEach((series, number) => {
        if (this.hidden.has(number)) return;
        if (this.data.kind === "points") {
          series.points.forEach(([x, y], i) => {
            const text = series.text[i];
            found.set(`${number} ${i}`, { x, at: text, marks: [{ series: number, y, text: "" }] });
          });
          return;
        }
        const grid = this.data.grids[series.grid];
        grid.x.forEach((x, i) => {
          if (!found.has(x)) found.set(x, { x, at: grid.at[i], marks: [] });
          const y = series.y[this.scale][i];
          found.get(x).marks.push({ series: number, y, text: series.text[i] });
        });
      });
      return [...found.values()].sort((a, b) => a.x - b.x);
    }

    point(event) {
      const stops = this.stops();
      const box = this.drawings[this.scale].getBoundingClientRect();
      if (!stops.length || !box.width) return;
      const x = (event.clientX - box.left) * (this.data.width / box.width);
      const y = (event.clientY - box.top) * (this.data.width / box.width);
      const far = (stop) => (this.data.kind === "points"
        ? Math.hypot(stop.x - x, stop.marks[0].y - y) : Math.abs(stop.x - x));
      let best = 0;
      stops.forEach((stop, i) => { if (far(stop) < far(stops[best])) best = i; });
      this.show(stops, best);
    }

    key(event) {
      const stops = this.stops();
      const last = stops.length - 1;
      const page = Math.max(1, Math.round(stops.length / 10));
      const at = this.stop;
      const to = {
        ArrowRight: at === null ? 0 : at + 1, ArrowLeft: at === null ? last : at - 1,
        PageDown: at === null ? 0 : at + page, PageUp: at === null ? last : at - page,
        Home: 0, End: last,
      }[event.key];
      if (event.key === "Escape") this.leave();
      if (to === undefined || last < 0) return;
      event.preventDefault();
      this.show(stops, Math.min(last, Math.max(0, to)));
    }

    show(stops, number) {
      this.clear();
      this.stop = number;
      const { x, at, marks } = stops[number];
      const { top, bottom, width } = this.data;
      const cross = make("g", { class: "cross" });
      cross.append(make("line", { x1: x, x2: x, y1: top, y2: bottom }));
      const list = make("table");
      for (const { series, y, text } of marks) {
        cross.append(make("circle", { class: `dot ${this.data.series[series].color}`, cx: x, cy: y, r: 4.5 }));
        const row = make("tr");
        row.append(make("th", { class: `key ${this.data.series[series].color}` }, this.data.series[series].name));
        row.append(make("td", {}, text));
        list.append(row);
      }
      this.drawings[this.scale].append(cross);
      this.tip.replaceChildren(make("b", {}, at), list);
      this.tip.classList.add("shown");
      const share = x / width;
      this.tip.style.left = share < 0.5 ? `calc(${100 * share}% + 12px)` : "auto";
      this.tip.style.right = share < 0.5 ? "auto" : `calc(${100 * (1 - share)}% + 12px)`;
      this.reading.textContent = `${at}: ` + marks.map(
        ({ series, text }) => `${this.data.series[series].name} ${text}`).join(", ");
    }

    clear() {
      this.plot.querySelectorAll(".cross").forEach((node) => node.remove());
    }

    leave() {
      this.clear();
      this.stop = null;
      this.tip.classList.remove("shown");
    }
  }

  // -- clients --------------------------------------------------------------------------------

  function searchable(section) {
    const { rows, most } = JSON.parse(section.querySelector("script").textContent);
    const body = section.querySelector("tbody");
    const input = section.querySelector("input[type=search]");
    const only = section.querySelector("input[type=checkbox]");
    const count = section.querySelector(".count");
    const fill = () => {
      const wanted = input.value.trim().toLowerCase();
      const found = rows.filter((row) =>
        row[0].toLowerCase().includes(wanted) && !(only.checked && row.at(-1) !== "yes"));
      body.replaceChildren(...found.slice(0, most).map((row) => {
        const line = make("tr");
        row.forEach((cell, i) => line.append(make(i ? "td" : "th", i ? {} : { scope: "row" }, cell)));
        return line;
      }));
      const shown = Math.min(most, found.length);
      count.textContent = `${shown.toLocaleString("en")} of ${found.length.toLocaleString("en")} shown`;
    };
    input.addEventListener("input", fill);
    only.addEventListener("change", fill);
    fill();
  }

  // -- switches -------------------------------------------------------------------------------

  function copyable(button) {
    const target = document.getElementById(button.dataset.copies);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(target.textContent);
      } catch { // not allowed here: select the text, so that the user can copy it
        getSelection().selectAllChildren(target);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  function themes(button) {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const is = () => document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
    const name = () => { button.textContent = is() === "dark" ? "Light" : "Dark"; };
    button.addEventListener("click", () => {
      document.documentElement.dataset.theme = is() === "dark" ? "light" : "dark";
      name();
    });
    dark.addEventListener("change", name);
    name();
  }

  // A printed page cannot be opened further: open short tables and leave out long ones.
  function opened() {
    const paper = matchMedia("print");
    const before = new Map();
    const turn = () => {
      for (const details of document.querySelectorAll("details[data-print]")) {
        if (paper.matches) before.set(details, details.open);
        details.open = paper.matches || (before.get(details) ?? details.open);
      }
    };
    paper.addEventListener("change", turn);
    turn();
  }

  document.querySelectorAll("figure.chart").forEach((figure) => new Chart(figure));
  document.querySelectorAll(".clients").forEach(searchable);
  document.querySelectorAll("button[data-copies]").forEach(copyable);
  document.querySelectorAll("button.theme").forEach(themes);
  opened();
  document.documentElement.classList.add("live");
})();
