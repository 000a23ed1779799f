// Elements, and text from agents.
//
// Text is always set as text, never as HTML. Styles are set through the CSSOM, which the Content-Security-Policy permits.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Properties: `class`, `on` (handlers), `style` (CSS properties), `key` (see `renew`), else attributes. */
export function h(tag, properties, ...children) {
	return fill(document.createElement(tag), properties, children);
}

/** An SVG element. */
export function s(tag, properties, ...children) {
	return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Elements with handlers of their own: `renew` does not make others of them. */
const handled = new WeakSet();
/** What elements stand for, where `renew` could take them for others. */
const keys = new WeakMap();

function fill(element, properties, children) {
	for (const [name, value] of Object.entries(properties ?? {})) {
		if (value === null || value === undefined || value === false) continue;
		if (name === "key") {
			keys.set(element, value);
		} else if (name === "on") {
			handled.add(element);
			for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
		} else if (name === "style") {
			for (const [property, text] of Object.entries(value)) if (text !== null) element.style.setProperty(property, text);
		} else {
			element.setAttribute(name, value === true ? "" : value);
		}
	}
	add(element, children);
	return element;
}

/** A button: what it does, and what it shows. */
export function button(click, ...children) {
	return h("button", { type: "button", on: { click } }, children);
}

/** A link that looks as a button. */
export function linkButton(href, ...children) {
	return h("a", { class: "button", href }, children);
}

/** A text that is less important. */
export function soft(...children) {
	return h("span", { class: "soft" }, children);
}

function add(element, children) {
	for (const child of children) {
		if (child === null || child === undefined || child === false) continue;
		if (Array.isArray(child)) add(element, child);
		else element.append(child);
	}
}

/** Replaces the children of an element. */
export function set(element, ...children) {
	element.replaceChildren();
	add(element, children);
	return element;
}

/**
 * Gives an element these children, as `set` does, but keeps the elements that are there and changes them: so the focus, a selection and an
 * open tooltip stay. Elements are the same when their tag and their `key` are, and when they have no handlers.
 */
export function renew(element, ...children) {
	const wanted = [];
	flatten(wanted, children);
	renewChildren(element, wanted);
	return element;
}

function flatten(into, children) {
	for (const child of children) {
		if (child === null || child === undefined || child === false) continue;
		if (Array.isArray(child)) flatten(into, child);
		else into.push(child instanceof Node ? child : document.createTextNode(child));
	}
}

function isSame(old, next) {
	if (old === next) return true;
	return old.nodeName === next.nodeName && keys.get(old) === keys.get(next) && !handled.has(old) && !handled.has(next);
}

function renewChildren(element, wanted) {
	let place = element.firstChild;
	for (const next of wanted) {
		let old = place;
		while (old && !isSame(old, next)) old = old.nextSibling;
		if (!old) {
			element.insertBefore(next, place);
			continue;
		}
		// What is left out goes before the one that stays is reached, so that it is not moved: it would lose the focus.
		while (place !== old) {
			const gone = place;
			place = place.nextSibling;
			gone.remove();
		}
		place = old.nextSibling;
		if (old !== next) become(old, next);
	}
	while (place) {
		const gone = place;
		place = place.nextSibling;
		gone.remove();
	}
}

function become(old, next) {
	if (old.nodeType !== Node.ELEMENT_NODE) {
		if (old.data !== next.data) old.data = next.data;
		return;
	}
	for (const { name } of [...old.attributes]) if (!next.hasAttribute(name)) old.removeAttribute(name);
	for (const { name, value } of next.attributes) if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
	// The policy of the page forbids attributes with styles, not styles.
	if (old.style.cssText !== next.style.cssText) old.style.cssText = next.style.cssText;
	renewChildren(old, [...next.childNodes]);
}

// C0, DEL, C1, zero width, bidirectional controls, line separators, tags, lone surrogates.
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const NAMED = { "\n": "↵", "\t": "⇥", "\r": "␍" };

/** Text of an agent with its invisible characters made visible, cut to `limit` characters. */
export function clean(text, limit = 300) {
	const whole = typeof text === "string" ? text : String(text ?? "");
	const part = whole.length > limit ? whole.slice(0, limit) : whole;
	const shown = part.replace(INVISIBLE, (c) => NAMED[c] ?? `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
	return whole.length > limit ? `${shown}… (${whole.length.toLocaleString("en")} characters)` : shown;
}

/** Text of an agent as an element: isolated in direction, cut by the layout, whole (to a limit) in its tooltip. */
export function said(text, className = "") {
	const shown = clean(text);
	return h("bdi", { class: `said ${className}`, title: shown }, shown);
}

/** A name of an agent, or that it is empty: a link needs a text. */
export function named(text, className = "") {
	return text?.trim() ? said(text, className) : h("span", { class: "soft" }, "(no name)");
}

/** Text of an agent that keeps its lines, for details. */
export function block(text, limit = 20000) {
	const lines = String(text ?? "").slice(0, limit + 1).split("\n");
	let left = limit;
	const shown = [];
	for (const line of lines) {
		if (left <= 0) break;
		shown.push(clean(line, left));
		left -= line.length + 1;
	}
	return h("pre", { class: "block", tabindex: "0" }, shown.join("\n"));
}

/** Runs `task` at the next frame, once, however often it is asked for until then. */
export function framed(task) {
	let waits = false;
	return () => {
		if (waits) return;
		waits = true;
		requestAnimationFrame(() => {
			waits = false;
			task();
		});
	};
}

/** The value that `made` has for a key, made at the first call. */
export function once(made, key, make) {
	if (!made.has(key)) made.set(key, make(key));
	return made.get(key);
}

/** Runs `task` when `ms` have passed since the last call. */
export function settled(task, ms = 200) {
	let timer = 0;
	return (...values) => {
		clearTimeout(timer);
		timer = setTimeout(() => task(...values), ms);
	};
}

/** Offers bytes or text as a file. */
export function download(name, type, content) {
	const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
	const link = h("a", { href: url, download: name });
	document.body.append(link);
	link.click();
	link.remove();
	setTimeout(() => URL.revokeObjectURL(url), 10000);
}
