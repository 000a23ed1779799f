//! Coverage: the methods and lines of Java programs that were run, as text, JSON, or a tracefile of lcov.
//!
//! A method is known when the agent has named it or when it was run. Lines are known where the agent sends source locations
//! (versions 3 and 4).

use std::collections::BTreeMap;
use std::io::{self, Write};

use foldhash::quality::RandomState;
use hashbrown::HashMap;
use serde_json::{Value, json};

use super::words;

/// The maximum number of methods, and of source locations that wait for the names of their methods.
const MAX_METHODS: usize = 1 << 20;
/// The maximum number of lines of one source location; of a longer one the first line counts.
const MAX_LINES: u64 = 10_000;

/// A method that is known or was run.
#[derive(Clone, Debug, PartialEq)]
pub struct Method<'a> {
    /// The process.
    pub agent: std::borrow::Cow<'a, str>,
    /// Its id there, if it is known.
    pub id: Option<u64>,
    /// Its name: package, class and method.
    pub function: std::borrow::Cow<'a, str>,
    /// How often it was run, according to events of the kind `told`; 0: it is known only by name.
    pub runs: u64,
    /// The kind of the events.
    pub told: Told,
}

/// The kinds of events that tell of runs of methods. Several may tell of the same runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// Names of methods, and that they ran for the first time.
    Method,
    /// Entries.
    Entry,
    /// Spans.
    Span,
    /// Samples of a profile.
    Sample,
}

/// Lines of a method.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines<'a> {
    /// The process.
    pub agent: std::borrow::Cow<'a, str>,
    /// The id of the method there.
    pub method: u64,
    /// The first and the last line.
    pub lines: (u64, u64),
    /// Whether they were run.
    pub is_run: bool,
}

/// The methods of a class, by name.
type Methods = BTreeMap<String, Row>;

/// The methods of an input, by class and name.
#[derive(Debug, Default)]
pub struct Coverage {
    classes: BTreeMap<String, Methods>,
    names: HashMap<(String, u64), (String, String), RandomState>,
    waiting: Vec<(String, u64, (u64, u64), bool)>,
    methods: usize,
    left_out: u64,
}

#[derive(Debug, Default)]
struct Row {
    /// By [`Told`].
    told: [u64; 4],
    /// How often each line was run.
    lines: BTreeMap<u64, u64>,
}

/// Numbers of methods, classes or lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    run: usize,
    known: usize,
}

impl Coverage {
    /// Adds a method.
    pub fn add(&mut self, method: &Method<'_>) {
        let function = words::one_line(&method.function);
        let (class, name) = function.rsplit_once('.').unwrap_or(("(no class)", &function));
        let is_new = self.classes.get(class).is_none_or(|methods| !methods.contains_key(name));
        if is_new && self.methods >= MAX_METHODS {
            self.left_out += 1;
            return;
        }
        self.methods += usize::from(is_new);
        let row = self.classes.entry(class.to_owned()).or_default().entry(name.to_owned()).or_default();
        let told = &mut row.told[method.told as usize];
        *told = told.saturating_add(method.runs);
        if let Some(id) = method.id {
            let key = (method.agent.to_string(), id);
            self.names.entry(key).or_insert_with(|| (class.to_owned(), name.to_owned()));
        }
    }

    /// Adds lines.
    pub fn add_lines(&mut self, lines: &Lines<'_>) {
        if self.waiting.len() < MAX_METHODS || self.names.contains_key(&(lines.agent.to_string(), lines.method)) {
            self.waiting.push((lines.agent.to_string(), lines.method, lines.lines, lines.is_run));
        } else {
            self.left_out += 1;
        }
        if self.waiting.len() >= 4096 {
            self.assign();
        }
    }

    /// Adds lines whose methods have names to these.
    fn assign(&mut self) {
        let (names, classes) = (&self.names, &mut self.classes);
        self.waiting.retain(|(agent, method, (first, last), is_run)| {
            let Some((class, name)) = names.get(&(agent.clone(), *method)) else { return true };
            let row = classes.get_mut(class).and_then(|methods| methods.get_mut(name));
            let last = if last.saturating_sub(*first) < MAX_LINES { *last } else { *first };
            if let Some(row) = row {
                (*first..=last.max(*first)).for_each(|line| *row.lines.entry(line).or_default() += u64::from(*is_run));
            }
            false
        });
    }

    /// Nothing follows: how many methods and lines were left out, because there are too many or their names never came.
    pub fn finish(&mut self) -> u64 {
        self.assign();
        self.left_out + self.waiting.len() as u64
    }

    /// Whether no method is known.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// Writes tables of packages, classes and methods.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let mut packages: BTreeMap<&str, Share> = BTreeMap::new();
        for (class, methods) in &self.classes {
            let share = share(methods);
            let package = packages.entry(package(class)).or_default();
            *package = Share { run: package.run + share.run, known: package.known + share.known };
        }
        writeln!(out, "{}  package", Share::HEAD)?;
        packages.iter().try_for_each(|(package, share)| writeln!(out, "{}  {package}", share.row()))?;
        writeln!(out, "\n{}  class", Share::HEAD)?;
        for (class, methods) in &self.classes {
            writeln!(out, "{}  {class}", share(methods).row())?;
        }
        writeln!(out, "\n{:>10}  method", "runs")?;
        for (class, methods) in &self.classes {
            methods.iter().try_for_each(|(name, row)| writeln!(out, "{:>10}  {class}.{name}", row.runs()))?;
        }
        let total = self.total();
        writeln!(out, "\n{}  total", total.row())
    }

    fn total(&self) -> Share {
        let shares = self.classes.values().map(share);
        shares.fold(Share::default(), |sum, it| Share { run: sum.run + it.run, known: sum.known + it.known })
    }

    /// Writes a JSON document.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let method = |(name, row): (&String, &Row)| {
            let lines: BTreeMap<String, u64> = row.lines.iter().map(|(line, runs)| (line.to_string(), *runs)).collect();
            let mut shown = json!({"name": name, "runs": row.runs()});
            if !lines.is_empty() {
                shown["lines"] = json!(lines);
            }
            shown
        };
        let classes: Vec<Value> = self
            .classes
            .iter()
            .map(|(class, methods)| {
                let methods: Vec<Value> = methods.iter().map(method).collect();
                json!({"package": package(class), "name": class, "methods": methods})
            })
            .collect();
        let total = self.total();
        let run_classes = self.classes.values().filter(|methods| share(methods).run > 0).count();
        let document = json!({
            "methods": {"run": total.run, "known": total.known},
            "classes": {"run": run_classes, "known": classes.len()},
            "details": classes,
        });
        serde_json::to_writer_pretty(&mut *out, &document)?;
        writeln!(out)
    }

    /// Writes a tracefile of lcov: a record for each source file, whose path is that of its outermost class. genhtml leaves out
    /// files without lines: where no line of a file is known, its methods stand in the lines 1, 2, 3 and so on. A method without
    /// lines in another file stands in line 0.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write_lcov(&self, out: &mut impl Write) -> io::Result<()> {
        let mut files: BTreeMap<String, Vec<(&String, &Methods)>> = BTreeMap::new();
        for (class, methods) in &self.classes {
            let outer = class.split('$').next().unwrap_or(class);
            files.entry(format!("{}.java", outer.replace('.', "/"))).or_default().push((class, methods));
        }
        for (file, classes) in files {
            writeln!(out, "TN:\nSF:{file}")?;
            let mut lines: BTreeMap<u64, u64> = BTreeMap::new();
            let (mut found, mut hit) = (0u64, 0u64);
            let has_lines = classes.iter().any(|(_, methods)| methods.values().any(|row| !row.lines.is_empty()));
            for (class, methods) in classes {
                let simple = class.rsplit('.').next().unwrap_or(class);
                for (name, row) in methods {
                    let first = if has_lines { row.lines.keys().next().copied().unwrap_or(0) } else { found + 1 };
                    if !has_lines {
                        lines.insert(first, row.runs());
                    }
                    writeln!(out, "FN:{first},{simple}.{name}\nFNDA:{},{simple}.{name}", row.runs())?;
                    found += 1;
                    hit += u64::from(row.runs() > 0);
                    row.lines.iter().for_each(|(line, runs)| *lines.entry(*line).or_default() += runs);
                }
            }
            writeln!(out, "FNF:{found}\nFNH:{hit}")?;
            lines.iter().try_for_each(|(line, runs)| writeln!(out, "DA:{line},{runs}"))?;
            let run = lines.values().filter(|runs| **runs > 0).count();
            writeln!(out, "LF:{}\nLH:{run}\nend_of_record", lines.len())?;
        }
        Ok(())
    }
}

impl Row {
    /// How often it was run.
    fn runs(&self) -> u64 {
        self.told.into_iter().max().unwrap_or(0)
    }
}

impl Share {
    const HEAD: &str = "     run    known   share";

    fn row(self) -> String {
        let share = 100.0 * self.run as f64 / self.known.max(1) as f64;
        format!("{:>8} {:>8}  {share:>5.1}%", self.run, self.known)
    }
}

fn share(methods: &Methods) -> Share {
    Share { run: methods.values().filter(|row| row.runs() > 0).count(), known: methods.len() }
}

fn package(class: &str) -> &str {
    class.rsplit_once('.').map_or("(no package)", |(package, _)| package)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coverage() -> Coverage {
        let mut coverage = Coverage::default();
        let method = |id, function: &'static str, runs| Method {
            agent: "p".into(),
            id: Some(id),
            function: function.into(),
            runs,
            told: Told::Method,
        };
        let lines = |method, lines, is_run| Lines { agent: "p".into(), method, lines, is_run };
        coverage.add_lines(&lines(1, (10, 11), false));
        coverage.add_lines(&lines(1, (10, 10), true));
        coverage.add_lines(&lines(99, (1, 1), true));
        coverage.add(&method(1, "a.b.C.run", 0));
        coverage.add(&method(1, "a.b.C.run", 3));
        coverage.add(&method(2, "a.b.C$D.stop", 0));
        coverage.add(&method(3, "x.Y.z", 1));
        assert_eq!(coverage.finish(), 1, "lines of a method without a name");
        coverage
    }

    fn text(write: impl Fn(&Coverage, &mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&coverage(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn tables_have_packages_classes_and_methods() {
        let text = text(|coverage, out| coverage.write_text(out));
        for line in [
            "       1        2   50.0%  a.b",
            "       0        1    0.0%  a.b.C$D",
            "         3  a.b.C.run",
            "         0  a.b.C$D.stop",
            "       2        3   66.7%  total",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
        }
    }

    #[test]
    fn a_tracefile_has_a_record_for_each_source_file() {
        let text = text(|coverage, out| coverage.write_lcov(out));
        let expected = "TN:\nSF:a/b/C.java\nFN:10,C.run\nFNDA:3,C.run\nFN:0,C$D.stop\nFNDA:0,C$D.stop\nFNF:2\nFNH:1\nDA:10,1\nDA:11,0\nLF:2\n\
                        LH:1\nend_of_record\nTN:\nSF:x/Y.java\nFN:1,Y.z\nFNDA:1,Y.z\nFNF:1\nFNH:1\nDA:1,1\nLF:1\nLH:1\nend_of_record\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn json_has_the_same_numbers() {
        let document: Value = serde_json::from_str(&text(|coverage, out| coverage.write_json(out))).unwrap();
        assert_eq!((&document["methods"]["run"], &document["methods"]["known"]), (&json!(2), &json!(3)));
        assert_eq!((&document["classes"]["run"], &document["classes"]["known"]), (&json!(2), &json!(3)));
        assert_eq!(
            document["details"][0]["methods"][0],
            json!({"name": "run", "runs": 3, "lines": {"10": 1, "11": 0}})
        );
    }
}
