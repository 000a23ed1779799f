// Parts that several views share: headings, filters, sparklines, tooltips, empty states, commands.

import { button, clean, h, s, set } from "./dom.js";
import { Refused, pause, post } from "./api.js";
import * as units from "./units.js";

/** The heading of a view: title, the time and share of the traffic that it shows, and controls. */
export function heading(title, ...controls) {
	const scope = h("span", { class: "scope" });
	const element = h("div", { class: "head" }, h("h1", {}, title), scope, h("div", { class: "end" }, controls));
	return { element, scope: (answer) => void (scope.textContent = scopeText(answer)) };
}

/** The heading of a view that is updated, with a button that stops the updates. */
export function liveHeading(title, ...controls) {
	return heading(title, ...controls, pauseButton(pause).button);
}

/** A button that stops what moves: `change(isPaused)`. */
export function pauseButton(change) {
	let isPaused = false;
	const button = h("button", { type: "button", "aria-pressed": "false", "data-pause": true, title: "Key p", on: { click: toggle } }, "Pause");
	function toggle() {
		isPaused = !isPaused;
		button.setAttribute("aria-pressed", String(isPaused));
		button.textContent = isPaused ? "Continue" : "Pause";
		change(isPaused);
	}
	return { button, get isPaused() { return isPaused; } };
}

/** Over which time a view looks, and how much of the traffic it saw. */
export function scopeText({ window: time, coverage }) {
	if (!time || !coverage) return "";
	return `${units.clock(time.from_ms, 0)} to ${units.clock(time.to_ms, 0)} (${units.millis(time.to_ms - time.from_ms)}) · ${clean(coverage.text)}`;
}

/** What to show where nothing is: what it means, and what to do. */
export function empty(title, ...lines) {
	return h("div", { class: "empty" }, h("strong", {}, title), lines.map((line) => h("p", {}, line)));
}

export function failure(error) {
	return h("div", { class: "error", role: "alert" }, clean(error?.message ?? error, 600));
}

/** A panel with a title. */
export function panel(title, { end, body = true, id } = {}, ...children) {
	return h("section", { class: "panel", id }, title && h("header", {}, h("h2", {}, title), end && h("div", { class: "end" }, end)),
		body ? h("div", { class: "body" }, children) : children);
}

/** Pairs of a name and a value. Values that are no nodes are texts of agents. */
export function facts(pairs) {
	return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [
		h("dt", { title: clean(name) }, clean(name, 80)),
		h("dd", {}, value instanceof Node ? value : clean(asText(value), 2000)),
	]));
}

function asText(value) {
	return typeof value === "object" ? JSON.stringify(value) : value;
}

export function pill(text, kind = "") {
	return h("span", { class: `pill ${kind}` }, text);
}

/** A line over values, as SVG. The last value is the newest. */
export function spark(values, { title = "", max } = {}) {
	const width = 180;
	const height = 34;
	const top = Math.max(max ?? 0, ...values, 1e-9);
	const step = values.length > 1 ? width / (values.length - 1) : width;
	const points = values.map((value, at) => `${(at * step).toFixed(1)},${(height - 1 - ((value ?? 0) / top) * (height - 3)).toFixed(1)}`);
	const line = points.join(" L");
	return s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": title },
		s("title", {}, title),
		values.length > 0 && s("path", { class: "area", d: `M0,${height} L${line} L${width},${height} Z` }),
		values.length > 0 && s("path", { class: "stroke", d: `M${line}` }));
}

export function meter(part, whole, kind) {
	const share = whole > 0 ? Math.min(1, part / whole) : 0;
	const level = kind ?? (share > 0.9 ? "bad" : share > 0.75 ? "warn" : "");
	return h("span", { class: `meter ${level}`, role: "img", "aria-label": units.percent(part, whole) }, h("i", { style: { width: `${(100 * share).toFixed(1)}%` } }));
}

/** Buttons of which one is pressed. `options`: pairs of a value and its text. */
export function segments(label, options, value, change) {
	const element = h("div", { class: "segments", role: "group", "aria-label": label });
	const buttons = options.map(([option, text]) => button(() => { draw(option); change(option); }, clean(text, 60)));
	const draw = (current) => buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(options[at][0] === current)));
	element.append(...buttons);
	draw(value);
	return { element, draw };
}

/** The options of a choice of one of these texts, or of all. */
export const withAll = (texts) => [["", "all"], ...texts.map((text) => [text, text])];

/** A choice from a list. `options`: pairs of a value and its text. Drawing the same again changes nothing. */
export function choice(label, options, value, change) {
	const select = h("select", { on: { change: () => change(select.value) } });
	const element = h("label", {}, label, select);
	let drawn = "";
	const draw = (pairs, current) => {
		const state = JSON.stringify([pairs, current]);
		// An open list would close.
		if (state === drawn && select.value === String(current)) return;
		drawn = state;
		set(select, pairs.map(([option, text]) => h("option", { value: option }, clean(text, 80))));
		select.value = current;
		if (select.selectedIndex < 0) select.selectedIndex = 0;
	};
	draw(options, value);
	return { element, draw, select };
}

/** A field whose value is used when the typing pauses. */
export function field(label, { placeholder = "", value = "", type = "search", width }, change) {
	let timer = 0;
	const input = h("input", { type, placeholder, value, spellcheck: "false", autocomplete: "off", style: width ? { width } : {} });
	input.addEventListener("input", () => {
		clearTimeout(timer);
		timer = setTimeout(() => change(input.value), 250);
	});
	return { element: h("label", {}, label, input), input };
}

let tipElement = null;

/** A tooltip at the pointer. Without text it goes away. */
export function tip(text, x, y) {
	if (!text) {
		tipElement?.remove();
		tipElement = null;
		return;
	}
	tipElement ??= document.body.appendChild(h("div", { class: "tip" }));
	tipElement.textContent = text;
	const box = tipElement.getBoundingClientRect();
	tipElement.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 8))}px`;
	tipElement.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18}px`;
}

/** A dialog with a form: `submit` is called when it is sent. It closes then, and by Escape; the focus returns to where it was. */
export function openDialog(title, submit, ...content) {
	const form = h("form", { method: "dialog", on: { submit: () => submit() } }, h("h2", {}, title), content);
	const dialog = h("dialog", { "aria-label": title }, form);
	dialog.addEventListener("close", () => dialog.remove());
	document.body.append(dialog);
	dialog.showModal();
	return dialog;
}

export function closeDialog() {
	document.querySelector("dialog[open]")?.close();
}

/** The title of a command or of a state: its name in words. */
export function words(name) {
	const text = clean(name, 60).replaceAll("_", " ").replace(/\b(gc|cpu|pid)\b/g, (short) => short.toUpperCase());
	return text.charAt(0).toUpperCase() + text.slice(1);
}

/**
 * The buttons of an agent's commands. Each first says what it will do; then the line below says what happened.
 * `list`: `{ name, text, is_possible }`; `path(name)`: where to post it.
 */
export function commands(path, after = () => {}) {
	const outcome = h("div", { role: "status", "aria-live": "polite", class: "small outcome" });
	const buttons = h("div", { class: "row" });
	let drawn = "";

	function update(list) {
		const state = JSON.stringify(list);
		if (state === drawn) return;
		drawn = state;
		set(buttons, list.map((command) => h("button", {
			type: "button",
			"data-command": command.name,
			disabled: !command.is_possible,
			title: clean(command.text),
			on: { click: () => ask(command) },
		}, words(command.name))));
	}

	function ask(command) {
		openDialog(words(command.name), () => run(command),
			h("p", {}, clean(command.text, 600)),
			h("div", { class: "row" }, h("button", { type: "submit", class: "primary", "data-confirm": command.name }, "Send the command"), button(closeDialog, "Cancel")));
	}

	async function run(command) {
		const line = h("div", {});
		const tell = (text) => void (line.textContent = `${units.clock(Date.now(), 0)} ${words(command.name)}: ${text}`);
		tell("sending…");
		outcome.prepend(line);
		while (outcome.childElementCount > 4) outcome.lastElementChild.remove();
		try {
			tell(clean((await post(path(command.name))).text ?? "sent", 400));
		} catch (error) {
			line.className = "error";
			tell(error instanceof Refused ? clean(error.message, 400) : "the daemon did not answer");
		}
		after();
	}

	return { element: h("div", { class: "commands" }, buttons, outcome), update };
}
