// The time range of a view, in its address: the last minutes, or from one moment to another, dragged or typed.

import { h } from "./dom.js";
import { segments } from "./parts.js";
import { serverNow } from "./pulse.js";
import { step } from "./router.js";
import * as units from "./units.js";

const MINUTE = 60_000;
const DAY = 24 * 60 * MINUTE;
const PRESETS = [["", "15 min"], ["5", "5 min"], ["1", "1 min"], ["typed", "From … to"]];

/** A number of the address that is a moment, in Unix milliseconds. */
const momentOf = (text) => /^\d{1,15}$/.test(text ?? "") ? Number(text) : null;

/**
 * `change()` is called when another range was chosen, which is in the address then. `isSums`: the daemon widens it to whole minutes, so "1 min"
 * is the present minute.
 */
export function timeRange(query, change, { isSums = false } = {}) {
	let [minutes, from, to] = [query.get("range") ?? "", momentOf(query.get("from")), momentOf(query.get("to"))];
	const input = (label) => h("input", { type: "time", step: "1", "aria-label": label, on: { change: typed } });
	const [first, last] = [input("From"), input("To")];
	const fields = h("span", { class: "typed" }, first, "to", last);
	const isTyped = () => minutes === "typed" || from !== null || to !== null;
	const presets = segments("Time", PRESETS, isTyped() ? "typed" : minutes, (value) => {
		if (value === "typed") {
			minutes = value;
			draw();
			first.focus();
		} else {
			choose(null, null, value);
		}
	});
	const element = h("div", { class: "range" }, presets.element, fields);

	/** A time of day, as the latest moment that is not in the future. */
	function read(value, otherwise) {
		const [hours, min, seconds = 0] = value.split(":").map(Number);
		if (!value) return otherwise;
		const at = new Date(serverNow()).setHours(hours, min, seconds, 0);
		return at > serverNow() + MINUTE ? at - DAY : at;
	}

	function typed() {
		const [start, end] = [read(first.value, null), read(last.value, null)];
		last.setCustomValidity(start !== null && end !== null && end <= start ? "It is before the start." : "");
		if (last.reportValidity()) choose(start, end, "typed");
	}

	function draw() {
		presets.draw(isTyped() ? "typed" : minutes);
		fields.hidden = !isTyped();
		if (document.activeElement !== first) first.value = from === null ? "" : units.clock(from, 0);
		if (document.activeElement !== last) last.value = to === null ? "" : units.clock(to, 0);
	}

	function choose(start, end, preset = "") {
		[from, to, minutes] = [start, end, preset];
		draw();
		step({ from, to, range: preset === "typed" ? "" : preset });
		change();
	}
	draw();

	return {
		element,
		choose,
		/** The ends in Unix milliseconds; `null`: open. */
		get ends() {
			const back = Number(minutes) > 0 ? serverNow() - (Number(minutes) - (isSums ? 1 : 0)) * MINUTE : null;
			return from === null && to === null ? [back, null] : [from, to];
		},
		get isChosen() {
			return from !== null || to !== null || Number(minutes) > 0;
		},
		/** The same as parameters of the API, without what the daemon no longer has. */
		get parameters() {
			const [start, end] = this.ends;
			return { from_ms: start, to_ms: end };
		},
		/** As parameters of an address. */
		get state() {
			return { from, to, range: minutes === "typed" ? "" : minutes };
		},
	};
}
