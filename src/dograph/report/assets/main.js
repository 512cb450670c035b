// Draws the sections, keeps what the reader selected, and updates the page of a running run.

// What the reader selected: in the section of curves, and in that of domains.
const state = { source: "total", view: null, range: "all", run: null, probe: null, graph: null };
let data = null;

function show(page) {
  data = page;
  for (const name of ["title", "verdict", "made"])
    document.getElementById(name).replaceChildren(named(data[name]));
  const open = [...document.querySelectorAll("details[open][id]")].map((node) => node.id);
  resized.disconnect();
  usedIds.clear(); // the same parts get the same ids again
  redraw(...Object.keys(data.sections));
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
}

// Draws sections again; the focus stays where it was.
function redraw(...names) {
  const focus = document.activeElement?.id;
  for (const name of names) {
    const content = data.sections[name];
    const parts = name === "domains" ? domains(content) : content.map(item);
    document.querySelector(`#${name} .body`).replaceChildren(...parts.flat(2));
  }
  if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
}

// While a run is training: ask the server on this machine for new data and draw it.
async function follow(version, wait) {
  const line = document.getElementById("live");
  let next = { version, wait };
  try {
    const url = `data.json?since=${encodeURIComponent(version)}`;
    const answer = await fetch(url, { cache: "no-store" });
    const isNew = answer.status === 200;
    if (isNew) {
      next = await answer.json();
      show(next.page);
    }
    const time = new Date().toLocaleTimeString();
    line.textContent = `Live: ${isNew ? "new data" : "no new data"} at ${time}.`;
  } catch {
    line.textContent = "Live: the server does not answer; the last data received is shown.";
  }
  setTimeout(() => follow(next.version, next.wait), 1000 * next.wait);
}

show(JSON.parse(document.getElementById("data").textContent));
if (document.body.dataset.live === "yes") follow("", 2);
