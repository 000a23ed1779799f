//! The forms of coverage: tables, JSON, and a tracefile of lcov.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

use super::{Count, Coverage, CoverageRow, Methods, parts};

/// Why there is no share without class files.
const NO_SHARE: &str = "no share: agents name a method at its first use, so a method that never ran is not known; --classes \
                        reads all methods from class files";

impl Coverage {
    /// Writes tables of packages, classes and methods.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let mut packages: BTreeMap<&str, Count> = BTreeMap::new();
        for (class, methods) in &self.classes {
            let package = packages.entry(package(class)).or_default();
            *package = package.and(self.count(methods));
        }
        let head = if self.has_class_files { "     run      all   share" } else { "     run    named" };
        writeln!(out, "{head}  package")?;
        packages.iter().try_for_each(|(package, count)| writeln!(out, "{}  {package}", self.numbers(*count)))?;
        writeln!(out, "\n{head}  class")?;
        for (class, methods) in &self.classes {
            writeln!(out, "{}  {class}", self.numbers(self.count(methods)))?;
        }
        writeln!(out, "\n{:>10}  method", "runs")?;
        for (class, methods) in &self.classes {
            for (name, row) in named(methods) {
                let runs = if row.is_ambiguous { "?".to_owned() } else { row.runs().to_string() };
                writeln!(out, "{runs:>10}  {class}.{name}")?;
            }
        }
        let total = self.total();
        writeln!(out, "\n{}  total", self.numbers(total))?;
        match self.has_class_files {
            false => writeln!(out, "\n{NO_SHARE}")?,
            true if total.outside > 0 => {
                writeln!(
                    out,
                    "\n{} ran that no class file has: no share has them",
                    super::words::counted(total.outside as u64, "method")
                )?;
            }
            true => {}
        }
        Ok(())
    }

    /// The columns of a row.
    fn numbers(&self, count: Count) -> String {
        let columns = format!("{:>8} {:>8}", count.run, count.all);
        match (self.has_class_files, count.share()) {
            (false, _) => columns,
            (true, Some(share)) => format!("{columns}  {:>5.1}%", 100.0 * share),
            (true, None) => format!("{columns}  {:>6}", "-"),
        }
    }

    fn total(&self) -> Count {
        self.classes.values().fold(Count::default(), |sum, methods| sum.and(self.count(methods)))
    }

    /// Writes a JSON document.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let details: Vec<Class<'_>> = self
            .classes
            .iter()
            .map(|(name, methods)| Class {
                package: package(name),
                name,
                methods: methods.iter().map(|(key, row)| self.shown(key, row)).collect(),
            })
            .collect();
        let methods = self.total();
        let classes = self.classes.values().fold(Count::default(), |sum, methods| {
            let Count { run, all, outside } = self.count(methods);
            let is_outside = all == 0 && outside > 0;
            sum.and(Count { run: (run > 0).into(), all: (all > 0).into(), outside: is_outside.into() })
        });
        let numbers = |count: Count| match self.has_class_files {
            false => json!({"run": count.run, "named": count.all}),
            true => json!({"run": count.run, "all": count.all, "share": count.share(), "outside": count.outside}),
        };
        let note = (!self.has_class_files).then_some(NO_SHARE);
        let document = Document { methods: numbers(methods), classes: numbers(classes), note, details };
        serde_json::to_writer_pretty(&mut *out, &document)?;
        writeln!(out)
    }

    fn shown<'a>(&self, key: &'a str, row: &'a CoverageRow) -> Shown<'a> {
        let (name, descriptor) = parts(key);
        Shown {
            name,
            descriptor,
            runs: (!row.is_ambiguous).then(|| row.runs()),
            is_outside: self.has_class_files && row.file.is_none(),
            lines: &row.lines,
        }
    }

    /// Writes a tracefile of lcov: a record for each source file, whose path is that of its outermost class. Its readers show
    /// shares, so it has the methods of the class files. genhtml leaves out files without lines: where no line of a file is known,
    /// its methods stand in the lines 1, 2, 3 and so on. A method without lines in another file stands in line 0.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write_lcov(&self, out: &mut impl Write) -> io::Result<()> {
        let mut files: BTreeMap<String, Vec<(&str, String, &CoverageRow)>> = BTreeMap::new();
        for (class, methods) in &self.classes {
            let outer = class.split('$').next().unwrap_or(class);
            let rows = named(methods).filter(|(_, row)| row.file.is_some());
            let mut rows = rows.map(|(name, row)| (&**class, name, row)).peekable();
            if rows.peek().is_some() {
                files.entry(format!("{}.java", outer.replace('.', "/"))).or_default().extend(rows);
            }
        }
        for (file, methods) in files {
            writeln!(out, "TN:\nSF:{file}")?;
            let mut lines: BTreeMap<u64, u64> = BTreeMap::new();
            let (mut found, mut hit) = (0u64, 0u64);
            let has_lines = methods.iter().any(|(_, _, row)| !row.lines.is_empty());
            for (class, name, row) in methods {
                let simple = class.rsplit('.').next().unwrap_or(class);
                let first = if has_lines { row.lines.keys().next().copied().unwrap_or(0) } else { found + 1 };
                if !has_lines {
                    lines.insert(first, row.runs());
                }
                writeln!(out, "FN:{first},{simple}.{name}\nFNDA:{},{simple}.{name}", row.runs())?;
                found += 1;
                hit += u64::from(row.runs() > 0);
                row.lines.iter().for_each(|(line, runs)| *lines.entry(*line).or_default() += runs);
            }
            writeln!(out, "FNF:{found}\nFNH:{hit}")?;
            lines.iter().try_for_each(|(line, runs)| writeln!(out, "DA:{line},{runs}"))?;
            let run = lines.values().filter(|runs| **runs > 0).count();
            writeln!(out, "LF:{}\nLH:{run}\nend_of_record", lines.len())?;
        }
        Ok(())
    }
}

impl Count {
    /// Those that were run, of all.
    fn share(self) -> Option<f64> {
        (self.all > 0).then(|| self.run as f64 / self.all as f64)
    }
}

#[derive(Serialize)]
struct Document<'a> {
    methods: Value,
    classes: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
    details: Vec<Class<'a>>,
}

#[derive(Serialize)]
struct Class<'a> {
    package: &'a str,
    name: &'a str,
    methods: Vec<Shown<'a>>,
}

/// A method.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    descriptor: &'a str,
    /// `None`: not known.
    runs: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_outside: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    lines: &'a BTreeMap<u64, u64>,
}

/// The methods of a class with their names, and with their descriptors where a name has several.
fn named(methods: &Methods) -> impl Iterator<Item = (String, &CoverageRow)> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    methods.keys().for_each(|key| *names.entry(parts(key).0).or_default() += 1);
    methods.iter().map(move |(key, row)| match parts(key) {
        (name, descriptor) if names[name] > 1 => (format!("{name}{descriptor}"), row),
        (name, _) => (name.to_owned(), row),
    })
}

fn package(class: &str) -> &str {
    class.rsplit_once('.').map_or("(no package)", |(package, _)| package)
}

#[cfg(test)]
mod tests {
    use super::super::{CoveredMethod, MethodLines, RunEvidence};
    use super::*;
    use crate::classes;

    fn method(id: u64, function: &'static str, descriptor: Option<&'static str>, runs: u64) -> CoveredMethod<'static> {
        let descriptor = descriptor.map(Into::into);
        CoveredMethod {
            agent: "p".into(),
            id: Some(id),
            function: function.into(),
            descriptor,
            runs,
            evidence: RunEvidence::Method,
        }
    }

    fn of_class_file(
        class: &'static str,
        name: &'static str,
        descriptor: &'static str,
        lines: &[u16],
    ) -> classes::ClassMethod<'static> {
        let lines = lines.iter().copied().collect();
        classes::ClassMethod { class: class.into(), name: name.into(), descriptor: descriptor.into(), lines }
    }

    /// A run of two methods and lines, with class files or without.
    fn coverage(class_files: &[classes::ClassMethod<'static>]) -> Coverage {
        let mut coverage = Coverage::default();
        class_files.iter().for_each(|method| coverage.add_of_class_file(method.clone()).unwrap());
        let lines = |method, lines, is_run| MethodLines { agent: "p".into(), method, lines, is_run };
        coverage.add_lines(&lines(1, (10, 11), false));
        coverage.add_lines(&lines(1, (10, 10), true));
        coverage.add_lines(&lines(99, (1, 1), true));
        coverage.add(&method(1, "a.b.C.run", Some("()V"), 0));
        coverage.add(&method(1, "a.b.C.run", None, 3));
        coverage.add(&method(3, "x.Y.z", Some("()I"), 1));
        assert_eq!(coverage.finish(), 1, "lines of a method without a name");
        coverage
    }

    fn all() -> Vec<classes::ClassMethod<'static>> {
        vec![
            of_class_file("a.b.C", "run", "()V", &[10, 11, 12]),
            of_class_file("a.b.C", "run", "(I)V", &[20]),
            of_class_file("a.b.C$D", "stop", "()V", &[30]),
        ]
    }

    fn written(coverage: &Coverage, write: impl Fn(&Coverage, &mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(coverage, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn text(coverage: &Coverage) -> String {
        written(coverage, |coverage, out| coverage.write_text(out))
    }

    fn json(coverage: &Coverage) -> Value {
        serde_json::from_str(&written(coverage, |coverage, out| coverage.write_json(out))).unwrap()
    }

    #[test]
    fn without_class_files_there_is_no_share() {
        let coverage = coverage(&[]);
        let expected = "     run    named  package\n       1        1  a.b\n       1        1  x\n\n     run    named  class\n       1        1  \
                        a.b.C\n       1        1  x.Y\n\n      runs  method\n         3  a.b.C.run\n         1  x.Y.z\n\n       2        2  \
                        total\n\nno share: agents name a method at its first use, so a method that never ran is not known; --classes reads \
                        all methods from class files\n";
        assert_eq!(text(&coverage), expected);
        let document = json(&coverage);
        assert_eq!(document["methods"], json!({"run": 2, "named": 2}));
        assert_eq!(document["note"], NO_SHARE);
        let shown = json!({"name": "run", "runs": 3, "descriptor": "()V", "lines": {"10": 1, "11": 0}});
        assert_eq!(document["details"][0]["methods"][0], shown);
    }

    #[test]
    fn class_files_have_the_methods_that_never_ran() {
        let coverage = coverage(&all());
        let text = text(&coverage);
        for line in [
            "       1        3   33.3%  a.b",
            "       0        1    0.0%  a.b.C$D",
            "       0        0       -  x.Y",
            "         3  a.b.C.run()V",
            "         0  a.b.C.run(I)V",
            "         0  a.b.C$D.stop",
            "       1        3   33.3%  total",
            "1 method ran that no class file has: no share has them",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
        }
        let document = json(&coverage);
        assert_eq!(document["methods"], json!({"run": 1, "all": 3, "share": 1.0 / 3.0, "outside": 1}));
        assert_eq!(document["classes"], json!({"run": 1, "all": 2, "share": 0.5, "outside": 1}));
        assert_eq!(document["details"][2]["methods"][0]["is_outside"], true);
    }

    #[test]
    fn a_tracefile_has_all_methods_and_lines_of_the_class_files() {
        let written = written(&coverage(&all()), |coverage, out| coverage.write_lcov(out));
        let expected = "TN:\nSF:a/b/C.java\nFN:10,C.run()V\nFNDA:3,C.run()V\nFN:20,C.run(I)V\nFNDA:0,C.run(I)V\nFN:30,C$D.stop\nFNDA:0,C$D.stop\n\
                        FNF:3\nFNH:1\nDA:10,1\nDA:11,0\nDA:12,0\nDA:20,0\nDA:30,0\nLF:5\nLH:1\nend_of_record\n";
        assert_eq!(written, expected);
    }

    #[test]
    fn overloads_that_the_input_does_not_distinguish_count_as_one_that_ran() {
        let of = |described: &[&'static str]| {
            let mut coverage = Coverage::default();
            all().into_iter().for_each(|method| coverage.add_of_class_file(method).unwrap());
            described.iter().for_each(|descriptor| coverage.add(&method(1, "a.b.C.run", Some(descriptor), 1)));
            let runs = CoveredMethod { id: None, evidence: RunEvidence::Span, ..method(0, "a.b.C.run", None, 7) };
            coverage.add(&runs);
            coverage.add(&CoveredMethod { function: "a.b.C$D.stop".into(), ..runs });
            coverage.finish();
            let runs: Vec<Value> = json(&coverage)["details"][0]["methods"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["runs"].clone())
                .collect();
            (coverage.total().run, coverage.ambiguous(), runs)
        };
        assert_eq!(of(&[]), (2, 2, vec![Value::Null, Value::Null]));
        assert_eq!(of(&["(I)V"]).0, 2);
        assert_eq!(of(&["(I)V"]).1, 0);
        assert_eq!(of(&["(I)V", "()V"]), (3, 2, vec![Value::Null, Value::Null]));
    }
}
