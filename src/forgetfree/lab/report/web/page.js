"use strict";

// light or dark, until the page is closed
{
  const root = document.documentElement, button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Show the page in ${isDark() ? "light" : "dark"} colours`);
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  system.addEventListener("change", name);
  button.hidden = false;
  name();
}

// tables sort by a heading: numbers by what stands before ±, words as words, blanks last
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], headings = [...table.tHead.rows[0].cells];
  const valued = (row, at, numbers) => {
    const cell = row.cells[at];
    if (!numbers) return cell.textContent.trim() || null;
    const value = parseFloat(cell.dataset.number ?? cell.textContent);
    return Number.isNaN(value) ? null : value;
  };
  headings.forEach((heading, at) => {
    heading.querySelector("button").addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      const numbers = heading.classList.contains("number");
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [valued(row, at, numbers), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        const order = numbers ? a - b : a.localeCompare(b, "en", { numeric: true });
        return down ? -order : order;
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
}

// squares of a matrix tell their value when pointed at, tapped, or reached with the arrow keys
for (const box of document.querySelectorAll(".asked")) {
  const status = box.querySelector(".status"), table = box.querySelector("table.matrix");
  const found = [...box.querySelectorAll(table ? "td[class]" : ".cell")], squares = new Map();
  if (!found.length) continue;
  let reached = found[0];
  const place = (square) =>
    table ? [square.parentElement.rowIndex, square.cellIndex] : [+square.dataset.row, +square.dataset.column];
  const words = (square) => {
    const [row, column] = place(square);
    if (table) {
      const unit = table.dataset.unit, name = table.tHead.rows[0].cells[column].abbr;
      return `After ${unit} ${row}, on ${unit} ${column} (${name}): ${square.textContent} %`;
    }
    const panel = square.dataset.name === "cell" ? "" : `${square.dataset.name}, `;
    return `${panel}row ${row}, column ${column}: ${square.dataset.value} %`;
  };
  const show = (square) => {
    reached.classList.remove("shown");
    reached.setAttribute("tabindex", "-1");
    reached = square;
    reached.classList.add("shown");
    reached.setAttribute("tabindex", "0");
    status.hidden = false;
    status.classList.add("answer");
    status.textContent = words(square);
  };
  let panels = 0, before = null;
  for (const square of found) {
    if (!table && square.parentElement !== before) panels += 1;
    before = square.parentElement;
    square.dataset.panel = panels;
    squares.set([panels, ...place(square)].join(), square);
    square.setAttribute("tabindex", "-1");
    if (!table) {
      square.setAttribute("role", "img");
      square.setAttribute("aria-label", words(square));
    }
  }
  reached.setAttribute("tabindex", "0");
  if (!table) {
    status.hidden = false;
    status.textContent = "Point at a square to see its value, or move with the arrow keys.";
  }
  const asked = (event) => {
    const square = event.target.closest(table ? "td[class]" : ".cell");
    if (square) show(square);
  };
  for (const event of ["pointerover", "focusin", "click"]) box.addEventListener(event, asked);
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  box.addEventListener("keydown", (event) => {
    const square = event.target.closest(table ? "td[class]" : ".cell"), step = steps[event.key];
    if (!square || !step) return;
    event.preventDefault();
    const [row, column] = place(square);
    squares.get([square.dataset.panel, row + step[0], column + step[1]].join())?.focus();
  });
}

// on paper everything is open
{
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const each of opened) each.open = true;
  });
  addEventListener("afterprint", () => {
    for (const each of opened) each.open = false;
  });
}
