"use strict";
// The filters of the findings, and the choice of light and dark. Without it the page
// shows the first findings and has no filters.
(() => {
  const by = (id) => document.getElementById(id);
  const list = by("list");
  const PAGE = 100;

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
  if (!list) return;

  const pages = [...document.querySelectorAll("template.page")];
  const every = [...list.children].concat(
    pages.flatMap((page) => [...page.content.children]),
  );
  const texts = new Map();
  const textOf = (finding) => {
    if (!texts.has(finding)) texts.set(finding, finding.textContent.toLowerCase());
    return texts.get(finding);
  };
  const filters = by("filters");
  const search = by("search");
  const boxes = [...filters.querySelectorAll("input[type=checkbox]")];
  const selects = [...filters.querySelectorAll("select")];
  const more = by("more");
  const unfold = by("unfold");
  let shown = PAGE;
  let matching = every;

  const matches = (finding, words, off) =>
    !off.has(finding.dataset.severity) &&
    selects.every((s) => !s.value || finding.dataset[s.name] === s.value) &&
    words.every((word) => textOf(finding).includes(word));
  const draw = () => {
    list.replaceChildren(...matching.slice(0, shown));
    const count = Math.min(shown, matching.length);
    const of = matching.length === every.length ? "" : ` of ${every.length}`;
    by("count").textContent =
      matching.length === 0
        ? `None${of} fits the filters.`
        : count < matching.length
          ? `${matching.length}${of} findings, the first ${count} are shown.`
          : `${matching.length}${of} findings.`;
    if (more) {
      more.hidden = count === matching.length;
      more.textContent = `Show ${Math.min(PAGE, matching.length - count)} more`;
    }
  };
  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const off = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
    matching = every.filter((finding) => matches(finding, words, off));
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
    const index = every.findIndex((finding) => finding.id === wanted);
    if (index < 0) return;
    clear();
    shown = Math.max(PAGE, index + 1);
    draw();
    every[index].open = true;
    every[index].scrollIntoView();
  };

  filters.hidden = by("count").hidden = false;
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
