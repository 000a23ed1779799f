//! `tributary decode … --as …` and `--compare`: profiles of decoded bytes, or of the event files of a sink.

mod picture;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::input::{Input, report_skipped};
use super::{CommandLineError, counted, printed, say};
pub(super) use picture::{Picture, Samples, StackForm};
use tributary_event::Batch;
use tributary_profile::classes;
use tributary_profile::collected::Collected;
use tributary_profile::compare::Comparison;
use tributary_profile::coverage::{Coverage, CoveredMethod, RunEvidence};
use tributary_profile::events;
use tributary_profile::heap::{DumpSummary, Dumps, Heap, Wanted};
use tributary_profile::{CallStep, Counted, ProfileItem, ProfileSample};
use tributary_protocol::Protocol;
use tributary_stored::event_file::EventFile;

#[derive(Debug, clap::Args)]
#[group(id = "profile")]
#[command(next_help_heading = "Profiles")]
pub(super) struct Arguments {
    /// Print a profile instead of events. Files can be event files of a sink too, also compressed ones
    #[arg(long = "as", value_name = "PROFILE")]
    form: Option<Form>,
    /// The quantity of the profile: cpu, wall, calls, allocations, heap-bytes, heap-objects, or a type of samples of a profiler,
    /// e.g. cpu-time [default: the first of these that the input has]
    #[arg(long, value_name = "SAMPLES")]
    sample: Option<Samples>,
    /// The process, by its name in the summary or a part of it [default: all]
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// With --as tree: only this function, by its name or a part of it, below its callers and above its callees
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// The heap dump, by its number [default: the last complete one]
    #[arg(long, value_name = "ID", conflicts_with = "compare")]
    dump: Option<u64>,
    /// The class files of the program, for --as coverage, coverage-json and lcov: a class file, a jar, or a directory of these.
    /// Repeatable
    ///
    /// Agents name a method at its first use. Class files have all methods, so they show which never ran, and what share of all
    /// did. Every method with code counts, also <clinit> and those that the compiler adds, because agents trace them; abstract and
    /// native methods have none. A class counts by its own name, wherever it stands in a jar. Not read: META-INF/versions, whose
    /// classes replace others in newer versions of Java, jars within jars, and symbolic links to directories; stderr counts them.
    /// Damaged files, class files of more than 16 MiB, more than 1048576 files or methods, 4 GiB of class files, or 256 MiB of
    /// names and lines are errors.
    #[arg(long, value_name = "FILE")]
    classes: Vec<PathBuf>,
    /// Print the objects that are in heap dump B and not in A. Two files, or the numbers of two dumps in FILE
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with = "form")]
    compare: Option<Vec<PathBuf>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// Stacks and their sums, one line each, for flame graph tools; times in microseconds
    Folded,
    /// A flame graph as SVG
    Flamegraph,
    /// A profile for pprof, as gzip-compressed protobuf
    Pprof,
    /// A profile for speedscope, as JSON
    Speedscope,
    /// A table of functions
    Top,
    /// The tree of calls
    Tree,
    /// Calls, spans and samples with their times for Perfetto and chrome://tracing, as JSON
    Perfetto,
    /// The same for Firefox Profiler, as JSON
    Firefox,
    /// The objects of the heap, by class and place (rbkit)
    Heap,
    /// The packages, classes and methods that were run (bytefrog)
    Coverage,
    /// The same as JSON, with lines where they are known
    CoverageJson,
    /// The same as a tracefile of lcov
    Lcov,
}

impl Form {
    /// The form of stacks; `None`: it shows something else.
    fn of_stacks(self) -> Option<StackForm> {
        match self {
            Form::Folded => Some(StackForm::Folded),
            Form::Flamegraph => Some(StackForm::Flamegraph),
            Form::Pprof => Some(StackForm::Pprof),
            Form::Speedscope => Some(StackForm::Speedscope),
            Form::Top => Some(StackForm::Top),
            Form::Tree => Some(StackForm::Tree),
            Form::Perfetto => Some(StackForm::Perfetto),
            Form::Firefox => Some(StackForm::Firefox),
            Form::Heap | Form::Coverage | Form::CoverageJson | Form::Lcov => None,
        }
    }
}

/// Decodes files, and passes each batch on.
type DecodeFiles<'a> = dyn Fn(Vec<Input>, &mut dyn FnMut(&Batch)) -> Result<(), CommandLineError> + 'a;

/// How files are read.
pub(super) struct Decode<'a> {
    pub(super) decode: &'a DecodeFiles<'a>,
    /// Event files are read without it.
    pub(super) takes_event_files: bool,
}

impl Arguments {
    /// Whether the arguments ask for a profile instead of events, of received bytes of `protocol` or of stored events.
    ///
    /// # Errors
    /// The protocol has no profiles, or an option needs another option.
    pub(super) fn is_wanted(&self, protocol: Option<Protocol>) -> Result<bool, CommandLineError> {
        let is_wanted = self.form.is_some() || self.compare.is_some();
        let is_heap = matches!(self.form, Some(Form::Heap));
        let is_table = is_heap || self.is_coverage();
        let misused = |words: &str| Err(CommandLineError::Misused(words.to_owned()));
        let is_other = |than: Protocol| protocol.is_some_and(|protocol| protocol != than);
        match () {
            () if self.sample.is_some() && (is_table || self.form.is_none()) => {
                misused("--sample needs --as folded, flamegraph, pprof, speedscope, top, tree, perfetto or firefox")
            }
            () if self.agent.is_some() && (is_table || self.form.is_none()) => {
                misused("--agent needs --as folded, flamegraph, pprof, speedscope, top, tree, perfetto or firefox")
            }
            () if self.function.is_some() && self.form != Some(Form::Tree) => misused("--function needs --as tree"),
            () if self.dump.is_some() && !is_heap => misused("--dump needs --as heap"),
            () if (is_heap || self.compare.is_some()) && is_other(Protocol::Rbkit) => {
                misused("--as heap and --compare: only rbkit has heap dumps")
            }
            () if self.is_coverage() && is_other(Protocol::Bytefrog) => {
                misused("--as coverage, coverage-json and lcov: only bytefrog has coverage")
            }
            () if !self.classes.is_empty() && !self.is_coverage() => {
                misused("--classes needs --as coverage, coverage-json or lcov")
            }
            () if self.classes.is_empty() && self.form == Some(Form::Lcov) => misused(
                "--as lcov needs --classes: its readers show shares, and agents do not name methods that never ran",
            ),
            () if is_wanted && protocol == Some(Protocol::Endless) => misused("--as: endless has no profiles"),
            () => Ok(is_wanted),
        }
    }

    /// Whether coverage is asked for.
    pub(super) fn is_coverage(&self) -> bool {
        matches!(self.form, Some(Form::Coverage | Form::CoverageJson | Form::Lcov))
    }

    /// Whether single items with their times are asked for.
    pub(super) fn has_times(&self) -> bool {
        self.form.and_then(Form::of_stacks).is_some_and(StackForm::has_times)
    }

    /// Writes the profile to stdout.
    pub(super) fn run(&self, files: &[PathBuf], decode: &Decode<'_>) -> Result<(), CommandLineError> {
        let mut out = BufWriter::new(io::stdout().lock());
        let stdin = [PathBuf::from("-")];
        let files_or_stdin = if files.is_empty() { &stdin[..] } else { files };
        let result = match (&self.compare, self.form) {
            (Some(two), _) => {
                let [before, after] = self.two(two, files, decode)?;
                Comparison::new(&before, &after).write(&mut out)
            }
            (None, Some(Form::Heap)) => {
                let wanted = self.dump.map_or(Wanted::LastWhole, Wanted::Number);
                heap(wanted, false, files_or_stdin, decode)?.write(&mut out)
            }
            (None, Some(form @ (Form::Coverage | Form::CoverageJson | Form::Lcov))) => {
                let coverage = coverage(&self.classes, files_or_stdin, decode)?;
                match form {
                    Form::CoverageJson => coverage.write_json(&mut out),
                    Form::Lcov => coverage.write_lcov(&mut out),
                    _ => coverage.write_text(&mut out),
                }
            }
            (None, form) => {
                let form = form.and_then(Form::of_stacks).unwrap_or(StackForm::Folded);
                let (agent, function) = (self.agent.as_deref(), self.function.as_deref());
                let picture = Picture { form, sample: self.sample.clone(), agent, function };
                picture.check()?;
                let mut collected = Collected::with_times(form.has_times());
                read(files_or_stdin, decode, |item| collected.add(&item))?;
                collected.finish();
                picture.write(&collected, &mut out)?
            }
        };
        printed(result.and_then(|()| out.flush()))
    }

    /// The dumps that are compared: of two files, or two numbers in one input.
    fn two(&self, two: &[PathBuf], files: &[PathBuf], decode: &Decode<'_>) -> Result<[Heap; 2], CommandLineError> {
        let [a, b] = two else { return Err(CommandLineError::Misused("--compare takes A and B".to_owned())) };
        if files.is_empty() {
            let of = |file: &PathBuf| heap(Wanted::LastWhole, true, std::slice::from_ref(file), decode);
            return Ok([of(a)?, of(b)?]);
        }
        if files.iter().any(|file| file == Path::new("-")) {
            return Err(CommandLineError::Misused(
                "--compare A B -: stdin cannot be read twice; write it to a file first".to_owned(),
            ));
        }
        let number = |text: &PathBuf| {
            let number = text.to_str().and_then(|text| text.parse().ok());
            number.ok_or_else(|| {
                CommandLineError::Misused("--compare A B FILE: A and B must be numbers of dumps".to_owned())
            })
        };
        let (a, b) = (number(a)?, number(b)?);
        let of = |number| heap(Wanted::Number(number), true, files, decode);
        Ok([of(a)?, of(b)?])
    }
}

/// Passes the profile items of the files to `take`: first those of event files in order, then those of other files in order.
fn read(files: &[PathBuf], decode: &Decode<'_>, mut take: impl FnMut(ProfileItem<'_>)) -> Result<(), CommandLineError> {
    if !decode.takes_event_files {
        let files = files.iter().map(|file| Input::new(file)).collect();
        return (decode.decode)(files, &mut |batch| events::items(batch).for_each(&mut take));
    }
    let mut captures = Vec::new();
    for path in files {
        let name = path.display();
        let failed = |error: io::Error| CommandLineError::Failed(format!("{name}: {error}"));
        let mut input = Input::new(path);
        match EventFile::open(input.open().map_err(failed)?).map_err(failed)? {
            Ok(events) => {
                let lines = events.read(events::is_wanted, &mut |batch, numbers, lines| {
                    for (event, number) in batch.events().zip(numbers) {
                        match events::item(event) {
                            Ok(item) => item.into_iter().for_each(&mut take),
                            Err(()) => lines.skip(*number),
                        }
                    }
                    true
                });
                report_skipped(&name, lines.map_err(failed)?);
            }
            Err(opened) => captures.push(Input { opened: Some(opened), ..input }),
        }
    }
    if captures.is_empty() {
        return Ok(());
    }
    (decode.decode)(captures, &mut |batch| events::items(batch).for_each(&mut take))
}

fn coverage(classes: &[PathBuf], files: &[PathBuf], decode: &Decode<'_>) -> Result<Coverage, CommandLineError> {
    let mut coverage = Coverage::default();
    let mut reader = classes::Reader::default();
    for path in classes {
        let read = reader.read(path, &mut |method| coverage.add_of_class_file(method));
        read.map_err(|error| CommandLineError::Failed(format!("--classes {error}")))?;
    }
    let found = reader.found();
    for (number, thing, why) in [
        (found.other_versions, "class file", "for another version of Java, below META-INF/versions"),
        (found.nested_jars, "jar", "within a jar: extract those that are traced"),
        (found.links, "link", "to a directory"),
    ] {
        if number > 0 {
            say(format_args!("--classes: not read: {} {why}", counted(number, thing)));
        }
    }
    read(files, decode, |item| match item {
        ProfileItem::Method(method) => coverage.add(&method),
        ProfileItem::Lines(lines) => coverage.add_lines(&lines),
        ProfileItem::Call(call) if call.step == CallStep::Entry => {
            coverage.add(&CoveredMethod {
                agent: call.agent,
                id: call.method,
                function: call.function,
                descriptor: None,
                runs: 1,
                evidence: RunEvidence::Entry,
            });
        }
        ProfileItem::Span(span) => {
            let (agent, function) = (span.agent, span.name);
            coverage.add(&CoveredMethod {
                agent,
                id: None,
                function,
                descriptor: None,
                runs: 1,
                evidence: RunEvidence::Span,
            });
        }
        ProfileItem::Sample(ProfileSample { counted: Counted::Calls, value, agent, frames, .. }) => {
            if let Some(function) = frames.into_iter().next().and_then(|frame| frame.function) {
                coverage.add(&CoveredMethod {
                    agent,
                    id: None,
                    function,
                    descriptor: None,
                    runs: value,
                    evidence: RunEvidence::Sample,
                });
            }
        }
        _ => {}
    })?;
    let left_out = coverage.finish();
    if left_out > 0 {
        let parts = counted(left_out, "part");
        say(format_args!(
            "{parts} of the input are left out: methods over the limit, or lines of methods without a name"
        ));
    }
    let ambiguous = coverage.ambiguous();
    if ambiguous > 0 {
        let methods = counted(ambiguous, "method");
        say(format_args!(
            "{methods} with overloads: the input does not tell which of them ran how often; coverage = true of the listener tells"
        ));
    }
    if !coverage.has_run() {
        return Err(CommandLineError::Failed("no method in the input".to_owned()));
    }
    Ok(coverage)
}

fn heap(wanted: Wanted, keeps_objects: bool, files: &[PathBuf], decode: &Decode<'_>) -> Result<Heap, CommandLineError> {
    let mut dumps = Dumps::new(wanted, keeps_objects);
    read(files, decode, |item| match item {
        ProfileItem::Object(object) => dumps.object(&object),
        ProfileItem::Sample(sample) => dumps.sum(&sample),
        ProfileItem::DumpEnd(dump) => dumps.end(&dump),
        _ => {}
    })?;
    let lacking = |name: &DumpSummary| if name.is_whole() { "" } else { " (not whole)" };
    let (heap, others) = dumps.finish().map_err(|names| {
        let kind = if wanted == Wanted::LastWhole { "whole heap dump" } else { "such heap dump" };
        let there: Vec<String> = names.iter().map(|name| format!("\n  there is {name}{}", lacking(name))).collect();
        CommandLineError::Failed(format!("no {kind} in the input{}", there.concat()))
    })?;
    let name = heap.name();
    say(format_args!("{name}{}", lacking(name)));
    for other in &others {
        say(format_args!("  there is also {other}{}", lacking(other)));
    }
    Ok(heap)
}
