//! The rules of docs/architecture.md that a compiler does not check: imports go down through the layers, modules of one
//! layer do not import each other, and no circle of imports is wider than two files.
//!
//! The sources are read as text. Comments, unit tests and re-exports do not count. The import of a re-exported name counts
//! as an import of the file that defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The layer of every top-level module. A module imports modules of lower layers only.
const LAYERS: &[(u32, &[&str])] = &[
    (7, &["cli", "main", "lib"]),
    (6, &["server", "admin", "config", "health", "commands", "quarantine"]),
    (5, &["transport", "driver", "decode", "capture"]),
    (4, &["pipeline", "select", "sink", "zico_store", "endless_store", "rbkit_store", "blocking", "nats"]),
    (3, &["protocol", "simulate", "wall_clock"]),
    (2, &["explain", "profile", "spool"]),
    (1, &["codec", "memory", "options", "stored"]),
    (0, &["event", "log_throttle", "directories", "histogram"]),
];

/// Imports between modules of one layer, each with its reason.
const SIBLINGS: &[(&str, &str, &str)] = &[
    ("admin", "commands", "the admin API sends operators' commands to agents"),
    ("admin", "health", "/livez and /readyz show it"),
    ("admin", "quarantine", "/quarantine shows what became of a request"),
    ("commands", "quarantine", "operators have requests tried again by the name of their listener"),
    ("quarantine", "config", "requests are decoded with the options of their listener"),
    ("server", "quarantine", "the server registers quarantines of listeners"),
    ("config", "admin", "the tree names every component, the admin endpoint too"),
    ("server", "admin", "the server starts it"),
    ("server", "commands", "the server registers agents that take commands"),
    ("server", "config", "the server is built from it"),
    ("server", "health", "the server starts it"),
    ("transport", "driver", "the transport moves the bytes of what the driver drives"),
    ("transport", "capture", "the transport writes the format that `decode` and `replay` read"),
    ("decode", "driver", "sessions without sockets are driven by the same code"),
    ("pipeline", "blocking", "a sink that blocks has a thread"),
    ("pipeline", "select", "the pipeline applies the rules of each sink"),
    ("pipeline", "sink", "the pipeline drives sinks"),
    ("select", "sink", "rules choose a selection for a sink; numbers and objects are hashed as JSON lines show them"),
    ("rbkit_store", "blocking", "stores wait for a disk"),
    ("sink", "blocking", "files are compressed and names are resolved on threads of their own"),
    ("sink", "nats", "the sink `nats` connects to servers as everything that uses them"),
    ("zico_store", "blocking", "stores wait for a disk"),
    ("zico_store", "nats", "daemons share registrations in a bucket"),
    ("endless_store", "nats", "daemons share what they have delivered in a bucket"),
    ("simulate", "protocol", "names of protocols; simulated agents share no code with decoders"),
    ("memory", "options", "limits are read from the configuration"),
];

/// The widest circle of imports, in files.
const MAX_CIRCLE: usize = 2;

/// Every source file by its module path; the crate's root is the empty path.
struct Crate {
    modules: BTreeMap<Vec<String>, Module>,
}

struct Module {
    file: String,
    /// Paths that the file imports or names, from the crate's root.
    paths: BTreeSet<Vec<String>>,
    /// Names that it re-exports or imports, with their paths from the crate's root.
    names: BTreeMap<String, Vec<String>>,
}

#[test]
fn imports_go_down_through_the_layers() {
    let layers: BTreeMap<&str, u32> =
        LAYERS.iter().flat_map(|(at, names)| names.iter().map(|name| (*name, *at))).collect();
    let mut wrong = BTreeSet::new();
    for (from, to) in Crate::read().edges() {
        let (from_top, to_top) = (top(&from), top(&to));
        let layer = |name: &str| *layers.get(name).unwrap_or_else(|| panic!("src/{name} has no layer in LAYERS"));
        if from_top == to_top || from_top == "lib" || layer(from_top) > layer(to_top) {
            continue;
        }
        let is_listed = SIBLINGS.iter().any(|(a, b, _)| (*a, *b) == (from_top, to_top));
        if !(is_listed && layer(from_top) == layer(to_top)) {
            wrong.insert(format!("{from} (layer {}) imports {to} (layer {})", layer(from_top), layer(to_top)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_circle_of_imports_is_wider_than_two_files() {
    let edges = Crate::read().edges();
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    edges.iter().for_each(|(from, to)| next.entry(from).or_default().push(to));
    let reach: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|file| (*file, reachable(file, &next))).collect();
    let mut circles: BTreeSet<Vec<&str>> = BTreeSet::new();
    for (file, reached) in &reach {
        let mutual = reached.iter().filter(|other| reach.get(**other).is_some_and(|back| back.contains(file)));
        circles.insert(mutual.copied().collect());
    }
    circles.retain(|circle| circle.len() > MAX_CIRCLE);
    assert!(circles.is_empty(), "{circles:#?}");
}

/// Every file that can be reached from this one by one import or more.
fn reachable<'a>(from: &'a str, next: &BTreeMap<&'a str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let (mut reached, mut waiting) = (BTreeSet::new(), vec![from]);
    while let Some(file) = waiting.pop() {
        for to in next.get(file).into_iter().flatten() {
            if reached.insert(*to) {
                waiting.push(to);
            }
        }
    }
    reached
}

/// The top-level module of `src/a/b.rs` is `a`, that of `src/a.rs` too.
fn top(file: &str) -> &str {
    file.trim_start_matches("src/").split('/').next().unwrap().trim_end_matches(".rs")
}

impl Crate {
    fn read() -> Crate {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut modules = BTreeMap::new();
        let mut folders = vec![root.join("src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let file = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                    let module = module_path(&file);
                    modules
                        .insert(module.clone(), Module::read(file, &module, &code(&fs::read_to_string(path).unwrap())));
                }
            }
        }
        Crate { modules }
    }

    /// Which file imports from which.
    fn edges(&self) -> BTreeSet<(String, String)> {
        let mut edges = BTreeSet::new();
        for module in self.modules.values() {
            for path in &module.paths {
                if let Some(target) = self.resolve(path, 0)
                    && target.file != module.file
                {
                    edges.insert((module.file.clone(), target.file.clone()));
                }
            }
        }
        edges
    }

    /// The file that defines what a path names.
    fn resolve(&self, path: &[String], depth: usize) -> Option<&Module> {
        let size = (0..=path.len()).rev().find(|size| self.modules.contains_key(&path[..*size]))?;
        let module = &self.modules[&path[..size]];
        let Some(name) = path.get(size) else { return Some(module) };
        match module.names.get(name) {
            Some(target) if depth < 8 && target != path => {
                let full: Vec<String> = target.iter().chain(&path[size + 1..]).cloned().collect();
                self.resolve(&full, depth + 1)
            }
            _ => Some(module),
        }
    }
}

impl Module {
    fn read(file: String, module: &[String], code: &str) -> Module {
        let (mut paths, mut names) = (BTreeSet::new(), BTreeMap::new());
        let mut rest = code;
        while let Some(at) = rest.find("use ") {
            let is_word =
                rest[..at].chars().next_back().is_none_or(|before| !before.is_alphanumeric() && before != '_');
            rest = &rest[at + 4..];
            let Some(end) = rest.find(';') else { break };
            let before = code[..code.len() - rest.len() - 4].trim_end();
            let is_reexport =
                before.ends_with("pub") || before.ends_with("pub(super)") || before.ends_with("pub(crate)");
            if is_word {
                let mut leaves = Vec::new();
                expand(&rest[..end], &mut Vec::new(), &mut leaves);
                for (leaf, name) in leaves {
                    let leaf = absolute(&leaf, module);
                    names.insert(name, leaf.clone());
                    if !is_reexport {
                        paths.insert(leaf);
                    }
                }
            }
        }
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        for word in
            code.split(|c| !is_path(c)).filter(|word| word.starts_with("crate::") || word.starts_with("super::"))
        {
            let word: Vec<String> = word.split("::").map(str::to_owned).collect();
            paths.insert(absolute(&word, module));
        }
        Module { file, paths, names }
    }
}

/// `src/a/mod.rs` and `src/a.rs` are the module `a`.
fn module_path(file: &str) -> Vec<String> {
    let path = file.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
    if path == "lib" { Vec::new() } else { path.split('/').map(str::to_owned).collect() }
}

/// The source without comments and without its unit tests.
fn code(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap();
    source.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The paths of a `use` tree, each with the name that it binds.
fn expand(tree: &str, prefix: &mut Vec<String>, leaves: &mut Vec<(Vec<String>, String)>) {
    let tree = tree.trim();
    let depth = prefix.len();
    let (path, group) = match tree.split_once('{') {
        Some((path, group)) => (path, group.rsplit_once('}').map(|(group, _)| group)),
        None => (tree, None),
    };
    let (path, alias) = path.split_once(" as ").map_or((path, None), |(path, alias)| (path, Some(alias.trim())));
    prefix.extend(path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned));
    match group {
        Some(group) => parts(group).into_iter().for_each(|part| expand(part, prefix, leaves)),
        None => {
            let mut path = prefix.clone();
            path.pop_if(|last| last == "self" || last == "*");
            let name = alias.map(str::to_owned).or_else(|| path.last().cloned()).unwrap_or_default();
            leaves.push((path, name));
        }
    }
    prefix.truncate(depth);
}

/// The parts of a group, which are separated by commas outside of inner groups.
fn parts(group: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// A path from the crate's root. A path into another crate leads nowhere; a path without a keyword begins in the module.
fn absolute(path: &[String], module: &[String]) -> Vec<String> {
    let mut base = module.to_vec();
    let mut rest = path;
    match path.first().map(String::as_str) {
        Some("crate") => {
            base.clear();
            rest = &path[1..];
        }
        Some("self") => rest = &path[1..],
        _ => {
            while rest.first().is_some_and(|part| part == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
    }
    base.extend(rest.iter().cloned());
    base
}
