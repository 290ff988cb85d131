"use strict";
// The filters of the findings, copying, and the choice of light and dark. Without it the
// page shows the first findings and has no filters.
(() => {
  const by = (id) => document.getElementById(id);
  const list = by("list");
  const signs = { amp: "&", lt: "<", gt: ">", "#34": '"', "#39": "'" };
  const words = (html) =>
    html.replace(/<[^>]*>/g, "").replace(/&(amp|lt|gt|#34|#39);/g, (_, s) => signs[s]);
  const attributes = (html) => {
    const start = html.slice(0, html.indexOf(">"));
    const data = {};
    for (const [, name, value] of start.matchAll(/data-(\w+)="([^"]*)"/g))
      data[name] = words(value);
    return { id: start.match(/ id="([^"]*)"/)[1], data };
  };
  const PAGE = 100;
  const noun = list?.dataset.noun ?? "findings";

  const theme = by("theme");
  const root = document.documentElement;
  const isDark = () =>
    root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
  const paint = () => theme.setAttribute("aria-pressed", String(isDark()));
  // A page opened as a file may have no storage: the choice then lasts as long as it.
  const stored = (value) => {
    try {
      if (value) localStorage.setItem("torchproof-theme", value);
      return localStorage.getItem("torchproof-theme");
    } catch {
      return null;
    }
  };
  const known = stored();
  if (known === "dark" || known === "light") root.dataset.theme = known;
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    stored(root.dataset.theme);
    paint();
  });
  paint();

  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const lines = by(button.dataset.copy);
      getSelection().selectAllChildren(lines);
      try {
        await navigator.clipboard.writeText(lines.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Selected"; // the reader's own keys copy it
      }
    });
  }
  if (!list) return;

  // Findings beyond the first page wait as text: thousands of them open at once.
  const waiting = [...document.querySelectorAll("script.page")].flatMap((page) =>
    page.text.split("\x1e").slice(0, -1),
  );
  const every = [...list.children]
    .map((element) => ({ id: element.id, data: element.dataset, element }))
    .concat(waiting.map((html) => ({ ...attributes(html), html })));
  const elementOf = (finding) => {
    if (!finding.element) {
      const box = document.createElement("template");
      box.innerHTML = finding.html;
      finding.element = document.importNode(box.content, true).firstElementChild;
    }
    return finding.element;
  };
  const textOf = (finding) => {
    finding.text ??= (finding.element?.textContent ?? words(finding.html)).toLowerCase();
    return finding.text;
  };
  const filters = by("filters");
  const search = by("search");
  const boxes = [...filters.querySelectorAll("input[type=checkbox]")];
  const selects = [...filters.querySelectorAll("select")];
  const more = by("more");
  const unfold = by("unfold");
  let shown = PAGE;
  let matching = every;

  const matches = (finding, wanted, off) =>
    !off.has(finding.data.severity) &&
    selects.every((s) => !s.value || finding.data[s.name] === s.value) &&
    wanted.every((word) => textOf(finding).includes(word));
  const draw = () => {
    list.replaceChildren(...matching.slice(0, shown).map(elementOf));
    const count = Math.min(shown, matching.length);
    const of = matching.length === every.length ? "" : ` of ${every.length}`;
    by("count").textContent =
      matching.length === 0
        ? `None${of} matches the filters.`
        : count < matching.length
          ? `${matching.length}${of} ${noun}, showing the first ${count}.`
          : `${matching.length}${of} ${every.length === 1 ? noun.slice(0, -1) : noun}.`;
    if (more) {
      more.hidden = count === matching.length;
      more.textContent = `Show ${Math.min(PAGE, matching.length - count)} more`;
    }
  };
  const apply = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const off = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
    matching = every.filter((finding) => matches(finding, wanted, off));
    shown = PAGE;
    draw();
  };
  const clear = () => {
    search.value = "";
    for (const box of boxes) box.checked = true;
    for (const select of selects) select.value = "";
    apply();
  };
  const reveal = () => {
    const wanted = location.hash.slice(1);
    const holds = (finding) =>
      finding.element
        ? finding.element.querySelector(`[id="${CSS.escape(wanted)}"]`)
        : finding.html.includes(` id="${wanted}"`);
    const index = wanted
      ? every.findIndex((finding) => finding.id === wanted || holds(finding))
      : -1;
    if (index < 0) {
      const rule = wanted && by(wanted);
      if (rule instanceof HTMLDetailsElement) rule.open = true;
      return;
    }
    clear();
    shown = Math.max(PAGE, index + 1);
    draw();
    const element = by(wanted);
    for (let each = element; each !== list; each = each.parentElement)
      if (each instanceof HTMLDetailsElement) each.open = true;
    element.scrollIntoView({ behavior: "instant" });
  };

  filters.hidden = by("act").hidden = false;
  filters.addEventListener("input", apply);
  by("clear").addEventListener("click", clear);
  unfold.addEventListener("click", () => {
    const open = unfold.getAttribute("aria-pressed") !== "true";
    unfold.setAttribute("aria-pressed", String(open));
    for (const finding of list.children) finding.open = open;
  });
  more?.addEventListener("click", () => {
    const first = list.children.length;
    shown += PAGE;
    draw();
    list.children[first]?.querySelector("summary").focus();
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "Escape" && event.target === search) {
      clear();
    }
  });
  // On paper nothing can be opened.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...list.children].filter((finding) => !finding.open);
    for (const finding of closed) finding.open = true;
  });
  addEventListener("afterprint", () => {
    for (const finding of closed) finding.open = false;
  });
  addEventListener("hashchange", reveal);
  draw();
  reveal();
})();
