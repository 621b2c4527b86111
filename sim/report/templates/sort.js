"use strict";
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), body = head.closest("table").tBodies[0];
    const column = [...head.parentNode.children].indexOf(head);
    const down = head.getAttribute("aria-sort") === "ascending";
    const key = (row) => row.children[column].dataset.key ?? row.children[column].textContent;
    const number = (text) => (text === "" ? -Infinity : Number(text));
    const rows = [...body.rows];
    const numeric = rows.every((row) => !Number.isNaN(number(key(row))));
    rows.sort((a, b) => (numeric ? number(key(a)) - number(key(b)) : key(a).localeCompare(key(b))) * (down ? -1 : 1));
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  });
}
