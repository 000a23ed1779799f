// Colours of categories and of frames. They are read from the style sheet, so they follow light and dark.

import { once } from "./dom.js";

const CATEGORIES = 8;

export function variable(name) {
	return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A colour for each of these names, in their order; from the ninth on the colours repeat. */
export function categories(names) {
	const sorted = [...names];
	return new Map(sorted.map((name, at) => [name, `var(--c${at % CATEGORIES})`]));
}

const darkScheme = matchMedia("(prefers-color-scheme: dark)");

/** Colours of functions in the present scheme. */
const frameColors = new Map();
const MOST_COLORS = 20_000;

// To ask takes a microsecond, and each box of a picture asks.
let dark = darkScheme.matches;
darkScheme.addEventListener("change", () => {
	dark = darkScheme.matches;
	frameColors.clear();
});

export const isDark = () => dark;

/** Calls `redraw` when the system changes between light and dark. Returns a function that ends it. */
export function onScheme(redraw) {
	darkScheme.addEventListener("change", redraw);
	return () => darkScheme.removeEventListener("change", redraw);
}

function hash(text) {
	let value = 2166136261;
	for (let at = 0; at < Math.min(text.length, 200); at += 1) value = Math.imul(value ^ text.charCodeAt(at), 16777619);
	return (value ^ (value >>> 15)) >>> 0;
}

/** The colour of a function: the hue is that of its module, the lightness its own. */
export function frameColor(name) {
	if (frameColors.size > MOST_COLORS) frameColors.clear();
	return once(frameColors, name, makeFrameColor);
}

function makeFrameColor(name) {
	const cut = Math.max(name.lastIndexOf("#"), name.lastIndexOf("::"), name.lastIndexOf(".", name.indexOf("(") < 0 ? undefined : name.indexOf("(")));
	const hue = 24 + (hash(cut > 0 ? name.slice(0, cut) : name) % 30);
	const step = hash(name) % 5;
	return isDark() ? `hsl(${hue} 52% ${34 + step * 3}%)` : `hsl(${hue} 82% ${66 + step * 4}%)`;
}

/** A colour for a change of share: orange for more, blue for less, grey for none. */
export function changeColor(change, largest) {
	const share = largest > 0 ? Math.min(1, Math.abs(change) / largest) : 0;
	const strength = Math.round(share ** 0.6 * 6);
	if (strength === 0) return isDark() ? "hsl(215 8% 30%)" : "hsl(215 12% 88%)";
	const hue = change > 0 ? 24 : 208;
	return isDark() ? `hsl(${hue} ${30 + strength * 8}% ${30 + strength * 3}%)` : `hsl(${hue} ${50 + strength * 6}% ${88 - strength * 5}%)`;
}
