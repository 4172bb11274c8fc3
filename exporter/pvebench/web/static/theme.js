// Light or dark: as the system, unless the reader chose. In the head, so that nothing flashes.
// Without it, or without storage, the page follows the system.
"use strict";

const KEY = "pvebench-theme";
const kept = (() => {
  try {
    return localStorage.getItem(KEY) || "";
  } catch {
    return "";
  }
})();
show(kept);

function show(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

addEventListener("DOMContentLoaded", () => {
  const choice = document.getElementById("theme");
  choice.value = document.documentElement.dataset.theme || "";
  choice.parentElement.hidden = false;
  choice.addEventListener("change", () => {
    show(choice.value);
    try {
      localStorage.setItem(KEY, choice.value);
    } catch {
      // For this page only, then.
    }
  });
});
