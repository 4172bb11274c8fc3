// Light or dark: the system theme, or the selected one. In the head, so that the page does not flash.
// Without this script or without local storage, the page follows the system.
"use strict";

const KEY = "pvebench-theme";
const stored = (() => {
  try {
    return localStorage.getItem(KEY) || "";
  } catch {
    return "";
  }
})();
show(stored);

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
      // No storage: the choice applies to this page only.
    }
  });
});
