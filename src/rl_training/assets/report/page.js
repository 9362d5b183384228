"use strict";
(() => {
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 3], [14, 4], [2, 6]];
  const SHAPES = ["circle", "square", "triangle", "diamond", "cross", "down"];
  const PLUS = [[-.4, -1.3], [.4, -1.3], [.4, -.4], [1.3, -.4], [1.3, .4], [.4, .4], [.4, 1.3], [-.4, 1.3], [-.4, .4], [-1.3, .4], [-1.3, -.4], [-.4, -.4]];
  const SHOWN_AT_FIRST = 7;
  const state = { view: "evaluation", hidden: {}, filter: "", sort: null, env: null, a: {}, b: {} };
  let data = {}, charts = [];

  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = i => css(`--c${i % 7}`);
  const faded = (hex, share) => hex + Math.round(share * 255).toString(16).padStart(2, "0");
  const whole = hex => hex.length === 4 ? "#" + [...hex.slice(1)].map(c => c + c).join("") : hex;
  const short = v => v == null ? "" : Math.abs(v) >= 1e4 ? Math.round(v).toLocaleString("en") : String(+v.toPrecision(4));
  const steps = v => v >= 1e6 ? `${+(v / 1e6).toPrecision(3)}M` : v >= 1e3 ? `${+(v / 1e3).toPrecision(3)}k` : String(+v.toPrecision(4));

  function marker(shape, x, y, r) {
    const path = new Path2D();
    if (shape === "circle") path.arc(x, y, r, 0, 2 * Math.PI);
    else if (shape === "square") path.rect(x - r, y - r, 2 * r, 2 * r);
    else {
      const corners = { triangle: [[0, -1.2], [1.1, .9], [-1.1, .9]], down: [[0, 1.2], [1.1, -.9], [-1.1, -.9]], diamond: [[0, -1.3], [1.2, 0], [0, 1.3], [-1.2, 0]], cross: PLUS }[shape];
      corners.forEach(([dx, dy], i) => path[i ? "lineTo" : "moveTo"](x + dx * r, y + dy * r));
      path.closePath();
    }
    return path;
  }

  const SVG = { circle: '<circle cx="17" cy="7" r="4"/>', square: '<rect x="13" y="3" width="8" height="8"/>', triangle: '<path d="M17 2l5 9h-10z"/>', diamond: '<path d="M17 1l5 6-5 6-5-6z"/>', cross: '<path d="M12 5.5h3.5v-4h3v4H22v3h-3.5v4h-3v-4H12z"/>', down: '<path d="M17 12l5-9h-10z"/>' };
  function swatch(svg, i) {
    svg.innerHTML = `<line x1="0" x2="34" y1="7" y2="7" stroke-width="2" stroke-dasharray="${DASHES[i % 7].join(" ")}"/><g stroke="none">${SVG[SHAPES[i % 6]]}</g>`;
  }

  class Chart {
    constructor(article) {
      this.article = article; this.box = $(".chart", article); this.groups = data[article.id].groups; this.env = data[article.id].env;
      this.reading = $(".reading", article); this.cells = $$("td.at", article); this.plot = null;
      this.hidden = state.hidden[this.env] ??= new Set(this.groups.map((_, i) => i).filter(i => i >= SHOWN_AT_FIRST));
      $$(".toggle", article).forEach((button, i) => {
        swatch($("svg", button), this.groups[i].style);
        button.setAttribute("aria-pressed", !this.hidden.has(i));
        button.addEventListener("click", () => {
          this.hidden.has(i) ? this.hidden.delete(i) : this.hidden.add(i);
          button.setAttribute("aria-pressed", !this.hidden.has(i));
          this.draw();
        });
      });
      this.box.addEventListener("keydown", event => this.key(event));
      this.box.addEventListener("blur", () => this.read(null));
      this.draw();
    }

    series() { return this.groups.map((g, i) => [i, g.views[state.view]]).filter(([i, s]) => s && !this.hidden.has(i)); }

    draw() {
      this.plot?.destroy(); this.plot = null; this.box.replaceChildren();
      const drawn = this.series();
      this.box.classList.toggle("empty", !drawn.length);
      if (!drawn.length) { this.box.textContent = this.groups.some(g => g.views[state.view]) ? "Every curve is hidden." : "Nothing was recorded for this view."; this.read(null); return; }
      const table = uPlot.join(drawn.map(([, s]) => s.low ? [s.x, s.y, s.low, s.high] : [s.x, s.y]));
      const series = [{}], bands = [], marks = [];
      for (const [i, s] of drawn) {
        const style = this.groups[i].style, line = () => whole(colour(style)), at = series.length;
        marks.push([style, at]);
        series.push({ label: this.groups[i].label, stroke: line, width: 2, dash: DASHES[style % 7], spanGaps: true, points: { show: s.x.length === 1, size: 9 } });
        if (s.low) {
          for (let k = 0; k < 2; k++) series.push({ stroke: () => faded(line(), .25), width: 1, spanGaps: true, points: { show: false } });
          bands.push({ series: [at + 2, at + 1], fill: () => faded(line(), .14) });
        }
      }
      const profile = state.view === "profile";
      const axis = () => css("--quiet"), grid = () => css("--line");
      const look = { stroke: axis, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
      this.plot = new uPlot({
        ...this.size(), series, bands, legend: { show: false }, padding: [12, 14, 0, 0],
        scales: { x: { time: false }, y: profile ? { range: [0, 1.02] } : {} },
        axes: [
          { ...look, values: (_, list) => list.map(profile ? short : steps), label: profile ? "return τ" : "environment steps", labelSize: 20, size: 30 },
          { ...look, values: (_, list) => list.map(short), label: profile ? "share of runs above τ" : state.view === "training" ? "return of training episodes" : state.view.startsWith("more:") ? state.view.slice(5) : "evaluation return", labelSize: 22, size: (_, texts) => 14 + 7 * Math.max(3, ...(texts || []).map(t => t.length)) },
        ],
        cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
        hooks: {
          setCursor: [u => this.read(u.cursor.left < 0 ? null : u.posToVal(u.cursor.left, "x"))],
          draw: [u => this.mark(u, marks)],
        },
      }, table, this.box);
    }

    mark(u, marks) {
      const ctx = u.ctx, r = 4 * devicePixelRatio;
      ctx.save(); ctx.setLineDash([]);
      for (const [i, at] of marks) {
        const points = u.data[at].map((v, k) => v == null ? -1 : k).filter(k => k >= 0);
        const gap = Math.max(1, Math.round(points.length / 7)), first = Math.floor(gap * ((i % 3) + 1) / 4);
        ctx.fillStyle = whole(colour(i)); ctx.strokeStyle = css("--card"); ctx.lineWidth = devicePixelRatio;
        for (let k = Math.min(first, points.length - 1); k < points.length; k += gap) {
          const path = marker(SHAPES[i % 6], u.valToPos(u.data[0][points[k]], "x", true), u.valToPos(u.data[at][points[k]], "y", true), r);
          ctx.fill(path); ctx.stroke(path);
        }
      }
      ctx.restore();
    }

    read(x) {
      this.cells.forEach(cell => { cell.textContent = ""; });
      if (x == null) { this.reading.innerHTML = "&nbsp;"; return; }
      const told = [];
      for (const [i, s] of this.series()) {
        if (x < s.x[0] || x > s.x[s.x.length - 1]) continue;
        let k = s.x.findIndex(v => v >= x);
        if (k > 0 && x - s.x[k - 1] < s.x[k] - x) k--;
        const text = s.low ? `${short(s.y[k])} [${short(s.low[k])}, ${short(s.high[k])}]` : short(s.y[k]);
        this.cells[i].textContent = text;
        told.push(`${this.groups[i].label} ${text}`);
      }
      const where = state.view === "profile" ? `Above a return of ${short(x)}` : `Step ${Math.round(x).toLocaleString("en")}`;
      this.reading.textContent = told.length > 4 ? `${where}: see the column “At cursor”` : `${where}: ${told.join(" · ") || "no values"}`;
    }

    key(event) {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move || !this.plot) return;
      event.preventDefault();
      const xs = this.plot.data[0], u = this.plot, stride = Math.max(1, Math.round(xs.length / 40)) * move;
      const now = u.cursor.left >= 0 ? u.posToIdx(u.cursor.left) : move > 0 ? -stride : xs.length - 1 - stride;
      const next = Math.max(0, Math.min(xs.length - 1, now + stride));
      u.setCursor({ left: u.valToPos(xs[next], "x"), top: u.over.clientHeight / 2 });
    }

    size() { const width = Math.max(260, this.box.clientWidth); return { width, height: width < 500 ? 260 : 330 }; }
    resize(width) { this.plot?.setSize(width ? { width, height: 260 } : this.size()); }
  }

  function table(heads, rows) {
    const cell = (tag, text, attributes) => Object.assign(document.createElement(tag), { textContent: text, ...attributes });
    const made = document.createElement("table");
    made.createTHead().insertRow().append(...heads.map(h => cell("th", h, { scope: "col" })));
    const body = made.createTBody();
    for (const [first, ...rest] of rows) body.insertRow().append(cell("th", first, { scope: "row" }), ...rest.map(text => cell("td", text)));
    const box = Object.assign(document.createElement("div"), { className: "scroll", tabIndex: 0 });
    box.append(made);
    return box;
  }

  function compare() {
    const env = $("#pick-env"), a = $("#pick-a"), b = $("#pick-b");
    if (!env) return;
    const choices = () => {
      const { groups, pairs } = data[env.value];
      const known = new Set(Object.keys(pairs).map(key => +key.split("-")[0]));
      for (const [pick, store, first] of [[a, state.a, 0], [b, state.b, 1]]) {
        pick.replaceChildren(...[...known].sort((x, y) => x - y).map(i => new Option(groups[i].label, i)));
        pick.value = known.has(+store[env.value]) ? store[env.value] : first;
      }
      verdict();
    };
    const verdict = () => {
      state.env = env.value; state.a[env.value] = a.value; state.b[env.value] = b.value;
      const { groups, pairs } = data[env.value], x = groups[a.value], y = groups[b.value], pair = pairs[`${a.value}-${b.value}`];
      const box = $("#verdict");
      if (!pair) { box.textContent = "Choose two different groups."; return; }
      const sum = document.createElement("p"), bar = document.createElement("div"), [value, low, high] = pair.bounds;
      sum.className = "sum"; bar.className = "chance"; bar.setAttribute("aria-hidden", "true");
      sum.append(`On ${data[env.value].env}: P(A > B) = `, Object.assign(document.createElement("b"), { textContent: pair.improvement }), "; IQM of A − B = ", Object.assign(document.createElement("b"), { textContent: pair.difference }));
      bar.innerHTML = `${low == null ? "" : `<i style="left:${100 * low}%;width:${100 * (high - low)}%"></i>`}<b style="left:${100 * value}%"></b><span>B better</span><span>A better</span>`;
      const numbers = table(["", "Runs", "IQM [95 %]", "Mean [95 %]", "Median [95 %]"], [["A", x], ["B", y]].map(([side, g]) => [`${side}: ${g.label}`, g.runs, g.numbers.iqm, g.numbers.mean, g.numbers.median]));
      const names = [...new Set([...Object.keys(x.config), ...Object.keys(y.config)])].filter(n => (x.config[n] ?? "default") !== (y.config[n] ?? "default"));
      const title = Object.assign(document.createElement("h3"), { textContent: "Options that differ" });
      const options = names.length ? table(["Option", "A", "B"], names.map(n => [n.replace(/^algo_kwargs\./, ""), x.config[n] ?? "default", y.config[n] ?? "default"])) : Object.assign(document.createElement("p"), { textContent: "None." });
      box.replaceChildren(sum, bar, numbers, title, options);
    };
    if (state.env && data[state.env] && [...env.options].some(o => o.value === state.env)) env.value = state.env;
    env.addEventListener("change", choices); a.addEventListener("change", verdict); b.addEventListener("change", verdict);
    choices();
  }

  function runs() {
    const body = $("#run-table tbody"), rows = [...body.rows], input = $("#filter"), heads = $$("#run-table thead th");
    const texts = rows.map(row => row.textContent.toLowerCase().replace(/\s+/g, " "));
    const filter = () => {
      state.filter = input.value;
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      rows.forEach((row, i) => { row.hidden = !words.every(word => texts[i].includes(word)); count += !row.hidden; });
      $("#matches").textContent = words.length ? `${count} of ${rows.length}` : "";
    };
    const sort = (column, down) => {
      state.sort = [column, down];
      const key = row => { const cell = row.cells[column]; return cell.dataset.value === undefined ? cell.textContent.trim() : cell.dataset.value === "" ? null : +cell.dataset.value; };
      const order = rows.map(row => [key(row), row]).sort(([x], [y]) => (x === null) - (y === null) || (down ? -1 : 1) * (typeof x === "number" ? x - y : String(x).localeCompare(y, "en", { numeric: true })));
      body.append(...order.map(([, row]) => row));
      heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : down ? "descending" : "ascending"));
    };
    input.value = state.filter; input.addEventListener("input", filter); filter();
    heads.forEach((head, i) => $(".sort", head).addEventListener("click", () => sort(i, head.getAttribute("aria-sort") === "ascending")));
    if (state.sort) sort(...state.sort);
  }

  function start() {
    data = JSON.parse($("#data").textContent);
    $$("input[name=view]").forEach(input => {
      input.checked = input.value === state.view;
      input.parentElement.hidden = !Object.values(data).some(env => env.groups.some(g => g.views[input.value]));
      input.addEventListener("change", () => { state.view = input.value; charts.forEach(chart => chart.draw()); });
    });
    charts = $$(".environment").map(article => new Chart(article));
    compare(); runs();
  }

  const redraw = () => charts.forEach(chart => chart.plot?.redraw(false, true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const print = on => { document.documentElement.classList.toggle("light", on); charts.forEach(chart => chart.resize(on ? 660 : 0)); redraw(); };
  matchMedia("print").addEventListener("change", event => print(event.matches));
  addEventListener("beforeprint", () => print(true)); addEventListener("afterprint", () => print(false));
  let waiting = 0;
  addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => { if (!matchMedia("print").matches) charts.forEach(chart => chart.resize()); }); });

  async function follow() {
    try {
      const { version } = await (await fetch("version")).json();
      if (version && version !== document.body.dataset.version) {
        const answer = await fetch("./");
        const next = answer.ok && new DOMParser().parseFromString(await answer.text(), "text/html");
        if (next) {
          const open = $$("details").map(d => d.open), focus = document.activeElement?.id;
          charts.forEach(chart => chart.plot?.destroy());
          $("#content").replaceWith($("#content", next));
          document.body.dataset.version = next.body.dataset.version;
          $$("details").forEach((d, i) => { if (open[i] !== undefined) d.open = open[i]; });
          start();
          if (focus) document.getElementById(focus)?.focus();
        }
      }
    } catch { /* the server is away; ask again */ }
    setTimeout(follow, 2000);
  }

  start();
  if (document.body.dataset.version !== undefined) follow();
})();
