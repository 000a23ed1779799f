// Names of functions: where space is short, their packages are cut, so that class and method are seen.

import { clean, h } from "./dom.js";

const MOST = 300;

/** Where the class of a function's name begins: behind its packages, modules and folders. */
function classStart(name) {
	// Parameters and places in files are behind the name: `a.B.c(int)`, `B#c (b.rb:1)`.
	const behind = /(?<=[\w$>])\(| /.exec(name);
	const base = behind ? name.slice(0, behind.index) : name;
	// The last part of `shop.CartService/GetCart` is no file and no package.
	const last = base.lastIndexOf("/") + 1;
	const folder = /[.#:]/.test(base.slice(last)) ? last : 0;
	const separators = [...base.slice(folder).matchAll(/::|[.#/]/g)].map((found) => folder + found.index + found[0].length);
	return separators.length > 1 ? separators.at(-2) : folder;
}

/** A function's name without its packages: `…CartServlet.doGet`. */
export function tailOf(name) {
	const start = classStart(name);
	return start > 0 ? `…${name.slice(start)}` : name;
}

/** A function's name as an element: whole where there is space, else without the beginning of its packages. */
export function functionName(name) {
	const shown = clean(name, MOST);
	const at = classStart(shown);
	return h("bdi", { class: "path", title: shown }, at > 0 && h("span", { class: "said" }, shown.slice(0, at)), h("span", { class: "said" }, shown.slice(at)));
}
