// Fetches this page again and puts what changed into it, so that focus and scroll stay where they are.
// Everything works without it: the page is whole when it arrives.
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
    // Said once: a screen reader repeats what is written again.
    if (!lost.textContent) {
      lost.textContent = `pvebench has not answered since ${new Date().toISOString().slice(11, 16)} UTC; what you see is old.`;
    }
  }
}

function morph(old, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    // Whether details are open is the reader's business.
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  let here = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const known = child.id ? [...old.children].find((one) => one.id === child.id) : null;
    // What stands before an element that stays is gone or comes again behind it.
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

function alike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id || "") === (other.id || "");
}

function drop(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

setInterval(update, EVERY_MS);
document.addEventListener("visibilitychange", update);
