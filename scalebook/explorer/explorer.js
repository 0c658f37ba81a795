// Draws explorers: a Vega chart whose signals follow controls. `render` serves a notebook with a kernel (anywidget),
// `start` a page without one. Both draw through the same functions, so that a reader sees the same chart.

// A page has its charts in Vega, for the build compiled them; from a kernel they come in Vega-Lite.
const isVega = (spec) => Boolean(spec.$schema);

// `ast`: Vega interprets its expressions. Compiling them would need eval, which a page's policy may forbid.
async function embed(element, spec, renderer) {
  if (!isVega(spec)) {
    const options = { mode: "vega-lite", actions: false, ast: true, defaultStyle: false, hover: false, renderer };
    return (await globalThis.vegaEmbed(element, spec, options)).view;
  }
  const { View, parse, expressionInterpreter } = globalThis.vega;
  const view = new View(parse(spec, {}, { ast: true }), { expr: expressionInterpreter, renderer, container: element });
  return view.runAsync();
}

// The chart takes its ink and its font from the text around it: so it follows the theme of any page it stands in.
function themed(spec, element) {
  const style = getComputedStyle(element);
  const ink = style.color;
  const config = structuredClone(spec.config);
  config.font = style.fontFamily;
  for (const part of ["axis", "legend", "header"]) {
    config[part] = { ...config[part], labelColor: ink, titleColor: ink };
  }
  config.axis = { ...config.axis, domainColor: ink, tickColor: ink, gridColor: ink };
  if (!isVega(spec)) for (const mark of ["text", "rule"]) config[mark] = { color: ink, ...config[mark] };
  return { ...spec, config };
}

// One drawn chart. `set` changes a signal and draws at once; `retheme` draws anew with the page's present colours.
async function draw(element, spec, renderer, values) {
  const begin = () => embed(element, themed(spec, element), renderer);
  let view = await begin();
  const apply = () => {
    for (const [signal, value] of Object.entries(values)) view.signal(signal, value);
    return view.runAsync();
  };
  // With its size fixed and contained, a change in the chart is laid out and painted there, not in the page.
  const settle = () => {
    element.style.height = `${element.querySelector("svg, canvas").getBoundingClientRect().height}px`;
    element.style.contain = "strict";
  };
  await apply();
  settle();
  return {
    get view() { return view; },
    set(signal, value) {
      values[signal] = value;
      view.signal(signal, value).run();
    },
    get(signal) { return view.signal(signal); },
    async retheme() {
      const old = view;
      view = await begin();
      await apply();
      old.finalize();
      settle();
    },
    async widen(width) {
      await view.width(width).resize().runAsync();
      settle();
    },
  };
}

// Calls `changed` when the page turns dark or light: the attributes that book themes, JupyterLab, VS Code and Colab
// set, and the system's own preference.
function watchTheme(changed) {
  const observer = new MutationObserver(changed);
  const attributeFilter = ["class", "data-theme", "data-jp-theme-light", "data-vscode-theme-kind", "theme"];
  for (const node of [document.documentElement, document.body]) {
    observer.observe(node, { attributes: true, attributeFilter });
  }
  const preference = matchMedia("(prefers-color-scheme: dark)");
  preference.addEventListener("change", changed);
  return () => { observer.disconnect(); preference.removeEventListener("change", changed); };
}

// Redraws only when the ink really changed, and one redraw at a time.
function followTheme(element, chart) {
  let ink = getComputedStyle(element).color;
  let pending = Promise.resolve();
  return watchTheme(() => {
    pending = pending.then(async () => {
      const now = getComputedStyle(element).color;
      if (now === ink) return;
      ink = now;
      await chart.retheme();
    });
  });
}

// The chart keeps its container's width. Vega listens to the window only, and a page's columns can still move after
// the window has taken its new size.
function followWidth(element, chart, spec) {
  const flexible = isVega(spec) ? spec.signals.some(({ name }) => name === "width") : spec.width === "container";
  if (!flexible) return () => {};
  let width = element.clientWidth;
  const observer = new ResizeObserver(() => {
    if (element.clientWidth === width || element.clientWidth === 0) return;
    width = element.clientWidth;
    chart.widen(width);
  });
  observer.observe(element);
  return () => observer.disconnect();
}

function complain(element, error) {
  const note = document.createElement("p");
  note.className = "explorer-error";
  note.setAttribute("role", "alert");
  note.textContent = `This explorer could not be drawn: ${error.message}`;
  element.removeAttribute("style");
  element.replaceChildren(note);
}

// ---- in a page -----------------------------------------------------------------------------------------------------

function position(input) {
  return input.type === "checkbox" ? input.checked : Number(input.value);
}

function showValue(input) {
  const output = input.parentElement.querySelector("output");
  if (!output) return;
  if (input.dataset.labels) {
    output.textContent = JSON.parse(input.dataset.labels)[Number(input.value)];
    input.setAttribute("aria-valuetext", output.textContent);
  } else {
    output.textContent = Number(input.value).toFixed(Number(input.dataset.decimals));
  }
}

async function mount(figure) {
  const element = figure.querySelector(".explorer-view");
  const spec = JSON.parse(figure.querySelector(".explorer-spec").textContent);
  const inputs = [...figure.querySelectorAll("[data-signal]")];
  const values = Object.fromEntries(inputs.map((input) => [input.dataset.signal, position(input)]));
  const chart = await draw(element, spec, figure.dataset.renderer, values);
  const disable = () => {
    for (const input of inputs) {
      if (input.dataset.disabled) input.disabled = chart.get(input.dataset.disabled);
    }
  };
  const [writeTable, speak] = [addTable(figure, chart), addVoice(figure, chart)];
  for (const input of inputs) {
    input.addEventListener("input", () => {
      showValue(input);
      chart.set(input.dataset.signal, position(input));
      disable();
      writeTable();
      speak(input);
    });
    showValue(input);
  }
  disable();
  followTheme(element, chart);
  followWidth(element, chart, spec);
  figure.querySelector(".explorer-controls").hidden = false;
  figure.explorer = chart;
  figure.dataset.state = "ready";
}

function loadScript(source) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = source;
    script.onload = resolve;
    script.onerror = () => reject(new Error(`${source} did not load`));
    document.head.append(script);
  });
}

// Vega is 0.9 MB: it is fetched once, when the first explorer comes near the window, and at once when the address leads
// to a place within the page, for then the reader will not be at its top. An explorer that the address names is drawn
// as soon as it is there. Until then a page that bears the class "opening" lays out only what is near the window.
function start(ownSource) {
  let vega = null;
  const fetchVega = () => {
    vega ??= loadScript(new URL("vega.js", ownSource).href).catch((error) => {
      vega = null;  // the next explorer tries again
      throw error;
    });
    return vega;
  };
  // There is no frame before the style sheets are there, and a chart takes its ink and its width from them.
  const styled = new Promise(requestAnimationFrame);
  const reveal = async (figure) => {
    try {
      await Promise.all([fetchVega(), styled]);
      await mount(figure);
    } catch (error) {
      complain(figure.querySelector(".explorer-view"), error);
      figure.dataset.state = "failed";
      throw error;
    }
  };
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      near.unobserve(entry.target);
      reveal(entry.target);
    }
  }, { rootMargin: "800px" });
  // A long page is still arriving when its first explorer is there: what follows a figure says that it is whole.
  const waiting = document.getElementsByClassName("explorer");
  let known = 0;
  const named = location.hash.slice(1);
  const layOut = () => document.documentElement.classList.remove("opening");
  const observe = () => {
    while (known < waiting.length && (waiting[known].nextSibling || document.readyState !== "loading")) {
      const figure = waiting[known];
      known += 1;
      if (figure.id === named) reveal(figure).finally(layOut);
      else near.observe(figure);
    }
  };
  const arriving = new MutationObserver(observe);
  arriving.observe(document, { childList: true, subtree: true });
  document.addEventListener("DOMContentLoaded", () => {
    arriving.disconnect();
    observe();
    if (!(document.getElementById(named)?.matches(".explorer"))) layOut();
  });
  if (document.readyState !== "loading") {
    arriving.disconnect();
    layOut();
  }
  if (location.hash.length > 1) fetchVega().catch(() => {});  // `reveal` reports what fails
  observe();
  // The still pictures are for paper, and fetched when it comes to that.
  matchMedia("print").addEventListener("change", (media) => {
    if (media.matches) for (const still of document.querySelectorAll("img.explorer-still")) still.loading = "eager";
  });
}

// ---- with a kernel -------------------------------------------------------------------------------------------------

// The kernel sends Vega once a page; it runs as a module from memory, as the widget's own code does.
function vegaFromKernel(model) {
  if (globalThis.vegaEmbed) return Promise.resolve();
  globalThis.scalebookVega ??= new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      globalThis.scalebookVega = null;
      reject(new Error("the kernel did not send Vega within 30 s; run the cell again"));
    }, 30000);
    model.on("msg:custom", async (message) => {
      if (!message.vega) return;
      clearTimeout(timer);
      const url = URL.createObjectURL(new Blob([message.vega], { type: "text/javascript" }));
      try {
        await import(url);
        resolve();
      } catch (error) {
        reject(error);
      } finally {
        URL.revokeObjectURL(url);
      }
    });
    model.send({ ask: "vega" });
  });
  return globalThis.scalebookVega;
}

async function render({ model, el }) {
  const element = document.createElement("div");
  element.className = "explorer-view";
  el.append(element);
  try {
    await vegaFromKernel(model);
    const signals = model.get("signals");
    const values = Object.fromEntries(signals.map((signal) => [signal, model.get(signal)]));
    const spec = model.get("spec");
    const chart = await draw(element, spec, model.get("renderer"), values);
    const report = () => {
      for (const name of model.get("disabling")) model.set(name, chart.get(name));
      model.set("drawn", model.get("drawn") + 1);
      model.save_changes();
    };
    for (const signal of signals) {
      model.on(`change:${signal}`, () => {
        chart.set(signal, model.get(signal));
        report();
      });
      chart.set(signal, model.get(signal));
    }
    report();
    el.explorer = chart;
    const stops = [followTheme(element, chart), followWidth(element, chart, spec)];
    return () => stops.forEach((stop) => stop());
  } catch (error) {
    complain(element, error);
    throw error;
  }
}

export default { render };
