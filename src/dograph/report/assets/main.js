// Puts the sections together, keeps what the reader chose, and follows a run that goes on.

const SECTIONS = ["overview", "curves", "domains", "health", "cost", "comparison"];
const state = {
  source: "total",
  view: null,
  range: "all",
  run: null,
  probe: null,
  graph: null,
  domain: null,
  basis: "last",
  tell: () => {},
};
let data = null;

function show(told) {
  data = told;
  document.getElementById("title").textContent = data.title;
  document.getElementById("verdict").textContent = data.verdict;
  document.getElementById("made").textContent =
    `Made ${data.made} by ${data.program}. This file needs no network.`;
  const open = new Set([...document.querySelectorAll("details[open][id]")].map((node) => node.id));
  forgetCharts();
  used.clear(); // the same things get the same identities again
  again(...SECTIONS);
  for (const id of open) {
    const details = document.getElementById(id);
    if (details) details.open = true;
  }
}

// Draws sections anew; the focus stays where it was.
function again(...names) {
  const focus = document.activeElement && document.activeElement.id;
  for (const name of names) {
    const told = data.sections[name];
    const parts = name === "domains" ? domains(told) : told.map(block);
    document.querySelector(`#${name} .body`).replaceChildren(...parts.flat());
  }
  if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
  drawRest();
}

function themes() {
  const order = ["system", "light", "dark"];
  let kept = null;
  try {
    kept = localStorage.getItem("dograph-theme");
  } catch {
    /* a page from disk may have no storage */
  }
  let at = Math.max(order.indexOf(kept), 0);
  const button = document.getElementById("theme");
  const set = () => {
    const name = order[at];
    if (name === "system") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", name);
    button.textContent = `Theme: ${name}`;
    try {
      localStorage.setItem("dograph-theme", name);
    } catch {
      /* nor now */
    }
  };
  button.addEventListener("click", () => {
    at = (at + 1) % order.length;
    set();
  });
  set();
}

// While a run goes on: ask the server on this machine for new data, and draw that alone.
async function follow(version, wait) {
  const line = document.getElementById("live");
  let next = { version, wait };
  try {
    const answer = await fetch(`data.json?since=${encodeURIComponent(version)}`, {
      cache: "no-store",
    });
    const isNew = answer.status === 200;
    if (isNew) {
      const told = await answer.json();
      show(told.page);
      next = told;
    }
    const time = new Date().toLocaleTimeString();
    line.textContent = `Live: ${isNew ? "new data" : "nothing new"} at ${time}.`;
  } catch {
    line.textContent = "Live: `dograph report --watch` does not answer; this is its last state.";
  }
  setTimeout(() => follow(next.version, next.wait), 1000 * next.wait);
}

themes();
show(JSON.parse(document.getElementById("data").textContent));
if (document.body.dataset.live === "yes") follow("", 2);
