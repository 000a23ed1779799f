//! Coverage: the methods and lines of Java programs that were run, as text, JSON, or a tracefile of lcov.
//!
//! Agents of all versions name a method, and its lines, at their first use. So the methods that never ran are known from class files
//! only, and without these no share is shown.

mod write;

use std::collections::BTreeMap;
use std::io;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::{classes, words};

/// The maximum number of methods, and of source locations that wait for the names of their methods.
const MAX_METHODS: usize = 1 << 20;
/// The maximum number of lines of one source location; of a longer one the first line counts.
const MAX_LINES: u64 = 10_000;

/// A method that is known or was run.
#[derive(Clone, Debug, PartialEq)]
pub struct CoveredMethod<'a> {
    /// The process.
    pub agent: std::borrow::Cow<'a, str>,
    /// Its id there, if it is known.
    pub id: Option<u64>,
    /// Its name: package, class and method.
    pub function: std::borrow::Cow<'a, str>,
    /// Its descriptor, if it is known.
    pub descriptor: Option<std::borrow::Cow<'a, str>>,
    /// How often it was run, according to events of the kind `evidence`; 0: it is known only by name.
    pub runs: u64,
    /// The kind of the events.
    pub evidence: RunEvidence,
}

/// The kinds of events that report runs of methods. Several may report the same runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunEvidence {
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
pub struct MethodLines<'a> {
    /// The process.
    pub agent: std::borrow::Cow<'a, str>,
    /// The id of the method there.
    pub method: u64,
    /// The first and the last line.
    pub lines: (u64, u64),
    /// Whether they were run.
    pub is_run: bool,
}

/// The methods of a class, by [`key`].
type Methods = BTreeMap<String, CoverageRow>;

/// The class and the key of a method.
type MethodKey = (String, String);

/// The methods of an input, by class and name.
#[derive(Debug, Default)]
pub struct Coverage {
    classes: BTreeMap<String, Methods>,
    names: HashMap<(String, u64), MethodKey, RandomState>,
    waiting: Vec<(String, u64, (u64, u64), bool)>,
    /// Class files have all methods.
    has_class_files: bool,
    methods: usize,
    left_out: u64,
}

#[derive(Debug, Default)]
struct CoverageRow {
    /// By [`RunEvidence`].
    evidence: [u64; 4],
    /// How often each line was run.
    lines: BTreeMap<u64, u64>,
    /// The lines of its class file; `None`: no class file has the method.
    file: Option<Vec<u16>>,
    /// Methods of this name were run, and the input has no descriptor: the number of runs is not known.
    is_ambiguous: bool,
}

/// Numbers of methods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    run: usize,
    all: usize,
    /// Methods that were run and that no class file has.
    outside: usize,
}

impl Coverage {
    /// Adds a method.
    pub fn add(&mut self, method: &CoveredMethod<'_>) {
        let id = method.id.map(|id| (method.agent.to_string(), id));
        let function = words::one_line(&method.function);
        let (class, name) = split(&function);
        let mut place = key(name, method.descriptor.as_deref().unwrap_or_default());
        if method.descriptor.is_none()
            && let Some(known) = id.as_ref().and_then(|id| self.names.get(id))
            && known.0 == class
            && parts(&known.1).0 == name
        {
            place.clone_from(&known.1);
        }
        let Some(row) = self.row(class, &place) else {
            self.left_out += 1;
            return;
        };
        let evidence = &mut row.evidence[method.evidence as usize];
        *evidence = evidence.saturating_add(method.runs);
        if let Some(id) = id
            && (method.descriptor.is_some() || !self.names.contains_key(&id))
        {
            self.names.insert(id, (class.to_owned(), place));
        }
    }

    /// Adds a method of a class file.
    ///
    /// # Errors
    /// There are too many methods.
    pub fn add_of_class_file(&mut self, method: classes::ClassMethod<'_>) -> io::Result<()> {
        self.has_class_files = true;
        let function = format!("{}.{}", method.class, method.name);
        let function = words::one_line(&function);
        let (class, name) = split(&function);
        let Some(row) = self.row(class, &key(name, &method.descriptor)) else {
            return Err(classes::invalid(format!("there are more than {MAX_METHODS} methods")));
        };
        row.file.get_or_insert_default().extend(method.lines);
        Ok(())
    }

    /// The row of a method. `None`: there are too many.
    fn row(&mut self, class: &str, key: &str) -> Option<&mut CoverageRow> {
        if self.classes.get(class).is_none_or(|methods| !methods.contains_key(key)) {
            if self.methods >= MAX_METHODS {
                return None;
            }
            self.methods += 1;
            self.classes.entry(class.to_owned()).or_default().insert(key.to_owned(), CoverageRow::default());
        }
        self.classes.get_mut(class)?.get_mut(key)
    }

    /// Adds lines.
    pub fn add_lines(&mut self, lines: &MethodLines<'_>) {
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
            let Some((class, key)) = names.get(&(agent.clone(), *method)) else { return true };
            let row = classes.get_mut(class).and_then(|methods| methods.get_mut(key));
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
        let has_lines = self.rows().any(|row| !row.lines.is_empty());
        for methods in self.classes.values_mut() {
            give_descriptors(methods);
            // A class file has lines of methods that the agent sends no lines of.
            let of_lines = |row: &&mut CoverageRow| has_lines && (row.runs() == 0 || !row.lines.is_empty());
            for row in methods.values_mut().filter(of_lines) {
                for line in row.file.iter().flatten() {
                    row.lines.entry((*line).into()).or_default();
                }
            }
        }
        self.left_out + self.waiting.len() as u64
    }

    /// Whether a method comes from an agent.
    pub fn has_run(&self) -> bool {
        self.rows().any(|row| row.runs() > 0 || row.file.is_none())
    }

    /// How many methods have overloads that the input does not distinguish.
    pub fn ambiguous(&self) -> u64 {
        self.rows().filter(|row| row.is_ambiguous).count() as u64
    }

    fn rows(&self) -> impl Iterator<Item = &CoverageRow> {
        self.classes.values().flat_map(BTreeMap::values)
    }

    fn count(&self, methods: &Methods) -> Count {
        methods.values().fold(Count::default(), |count, row| {
            let counts = !self.has_class_files || row.file.is_some();
            let is_run = row.runs() > 0;
            count.and(Count {
                run: usize::from(counts && is_run),
                all: usize::from(counts),
                outside: usize::from(!counts && is_run),
            })
        })
    }
}

/// Adds runs without a descriptor to the overload that was run. Where there are several, and the input has not named them by
/// descriptor when they ran, one of them counts as run.
fn give_descriptors(methods: &mut Methods) {
    let unknown: Vec<String> = methods.keys().filter(|key| parts(key).1.is_empty()).cloned().collect();
    for key in unknown {
        let Some(unknown) = methods.remove(&key) else { continue };
        // The keys of its overloads follow.
        let following = methods.range_mut(key.clone()..);
        let overloads = following.take_while(|(other, _)| parts(other).0 == parts(&key).0).map(|(_, row)| row);
        let mut those: Vec<&mut CoverageRow> = overloads.collect();
        let has_run = those.iter().any(|row| row.runs() > 0);
        those.retain(|row| row.runs() > 0 || !has_run);
        let is_ambiguous = those.len() > 1 && unknown.runs() > 0;
        those.iter_mut().for_each(|row| row.is_ambiguous = is_ambiguous);
        match those.first_mut() {
            None => {
                methods.insert(key, unknown);
            }
            Some(_) if is_ambiguous && has_run => {}
            Some(first) => {
                first
                    .evidence
                    .iter_mut()
                    .zip(unknown.evidence)
                    .for_each(|(evidence, more)| *evidence = evidence.saturating_add(more));
                unknown.lines.into_iter().for_each(|(line, runs)| *first.lines.entry(line).or_default() += runs);
            }
        }
    }
}

impl CoverageRow {
    /// How often it was run.
    fn runs(&self) -> u64 {
        self.evidence.into_iter().max().unwrap_or(0)
    }
}

impl Count {
    fn and(self, more: Count) -> Count {
        Count { run: self.run + more.run, all: self.all + more.all, outside: self.outside + more.outside }
    }
}

/// The class and the method of a function.
fn split(function: &str) -> (&str, &str) {
    function.rsplit_once('.').unwrap_or(("(no class)", function))
}

/// The key of a method. Those of a name follow each other, the one without a descriptor first; no name has a control character.
fn key(name: &str, descriptor: &str) -> String {
    format!("{name}\0{}", words::one_line(descriptor))
}

/// The name and the descriptor of a key.
fn parts(key: &str) -> (&str, &str) {
    key.split_once('\0').unwrap_or((key, ""))
}
