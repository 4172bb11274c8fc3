// Reloads this page and updates only what changed, so that focus and scroll position stay.
// The page is complete without this script.
"use strict";

const EVERY_MS = 15000;
const GIVE_UP_MS = 10000;

async function update() {
  if (document.hidden) return;
  const lost = document.getElementById("lost");
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(GIVE_UP_MS) });
    if (!answer.ok) throw new Error(answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (other) morph(part, other);
    }
    lost.textContent = "";
  } catch {
    // Set the text only once: a screen reader repeats it on each change.
    if (!lost.textContent) {
      lost.textContent = `No response from pvebench since ${new Date().toISOString().slice(11, 16)} UTC. The values are outdated.`;
    }
  }
}

function morph(old, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    // Keep the open state of details.
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  let here = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const known = child.id ? [...old.children].find((element) => element.id === child.id) : null;
    // Elements before one that stays are gone, or follow after it.
    while (known && here && here !== known) here = drop(here);
    if (here && alike(here, child)) {
      if (child.nodeType === Node.ELEMENT_NODE) morph(here, child);
      else if (here.nodeValue !== child.nodeValue) here.nodeValue = child.nodeValue;
      here = here.nextSibling;
    } else {
      old.insertBefore(document.importNode(child, true), here);
    }
  }
  while (here) here = drop(here);
}

function alike(node, other) {
  return node.nodeType === other.nodeType && node.nodeName === other.nodeName && (node.id || "") === (other.id || "");
}

function drop(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

setInterval(update, EVERY_MS);
document.addEventListener("visibilitychange", update);
