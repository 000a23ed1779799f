//! `tributary decode … --as …` and `--compare`: profiles of decoded bytes, or of the event files of a sink.

mod collected;

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use super::input::Input;
use super::{Failure, counted, quiet, say};
use crate::event::Batch;
use crate::profile::compare::Comparison;
use crate::profile::coverage::{Coverage, Method, Told};
use crate::profile::events::{self, EventFile};
use crate::profile::heap::{Dumps, Heap, Name, Wanted};
use crate::profile::{Counted, Item, Sample, Step, flamegraph, pprof, report, speedscope};
use crate::protocol::Protocol;
use collected::{Collected, Shown, Source};

#[derive(Debug, clap::Args)]
#[group(id = "profile")]
#[command(next_help_heading = "Profiles")]
pub(super) struct Arguments {
    /// Print a profile instead of events. Files can be event files of a sink too, also compressed ones
    #[arg(long = "as", value_name = "PROFILE")]
    form: Option<Form>,
    /// The quantity of the profile [default: cpu, wall, allocations, heap-bytes: the first that the input has]
    #[arg(long, value_name = "SAMPLES")]
    sample: Option<Samples>,
    /// The process, by its name in the summary or a part of it [default: all]
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// The heap dump, by its number [default: the last complete one]
    #[arg(long, value_name = "ID", conflicts_with = "compare")]
    dump: Option<u64>,
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
    /// The objects of the heap, by class and place (rbkit)
    Heap,
    /// The packages, classes and methods that were run (bytefrog)
    Coverage,
    /// The same as JSON, with lines where they are known
    CoverageJson,
    /// The same as a tracefile of lcov
    Lcov,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Samples {
    /// CPU samples
    Cpu,
    /// Time of calls and spans, without the calls within them
    Wall,
    /// Numbers of calls
    Calls,
    /// Allocated objects
    Allocations,
    /// Sizes of the objects of the heap
    HeapBytes,
    /// Objects of the heap
    HeapObjects,
}

impl From<Samples> for Counted {
    fn from(samples: Samples) -> Counted {
        match samples {
            Samples::Cpu => Counted::Cpu,
            Samples::Wall => Counted::Wall,
            Samples::Calls => Counted::Calls,
            Samples::Allocations => Counted::Allocations,
            Samples::HeapBytes => Counted::HeapBytes,
            Samples::HeapObjects => Counted::HeapObjects,
        }
    }
}

/// How files are read.
pub(super) struct Decode<'a> {
    /// Decodes files, and passes each batch on.
    pub(super) decode: &'a dyn Fn(Vec<Input>, &mut dyn FnMut(&Batch)) -> Result<(), Failure>,
    /// Event files are read without it.
    pub(super) takes_event_files: bool,
}

impl Arguments {
    /// Whether the arguments ask for a profile instead of events, of received bytes of `protocol` or of stored events.
    ///
    /// # Errors
    /// The protocol has no profiles, or an option needs another option.
    pub(super) fn is_wanted(&self, protocol: Option<Protocol>) -> Result<bool, Failure> {
        let is_wanted = self.form.is_some() || self.compare.is_some();
        let is_heap = matches!(self.form, Some(Form::Heap));
        let is_table = is_heap || self.is_coverage();
        let misused = |words: &str| Err(Failure::Misused(words.to_owned()));
        let is_other = |than: Protocol| protocol.is_some_and(|protocol| protocol != than);
        match () {
            () if self.sample.is_some() && (is_table || self.form.is_none()) => {
                misused("--sample needs --as folded, flamegraph, pprof, speedscope, top or tree")
            }
            () if self.agent.is_some() && (is_table || self.form.is_none()) => {
                misused("--agent needs --as folded, flamegraph, pprof, speedscope, top or tree")
            }
            () if self.dump.is_some() && !is_heap => misused("--dump needs --as heap"),
            () if (is_heap || self.compare.is_some()) && is_other(Protocol::Rbkit) => {
                misused("--as heap and --compare: only rbkit has heap dumps")
            }
            () if self.is_coverage() && is_other(Protocol::Bytefrog) => {
                misused("--as coverage, coverage-json and lcov: only bytefrog has coverage")
            }
            () if is_wanted && protocol == Some(Protocol::Endless) => misused("--as: endless has no profiles"),
            () => Ok(is_wanted),
        }
    }

    /// Whether coverage is asked for.
    pub(super) fn is_coverage(&self) -> bool {
        matches!(self.form, Some(Form::Coverage | Form::CoverageJson | Form::Lcov))
    }

    /// Writes the profile to stdout.
    pub(super) fn run(&self, files: &[PathBuf], decode: &Decode<'_>) -> Result<(), Failure> {
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
                let coverage = coverage(files_or_stdin, decode)?;
                match form {
                    Form::CoverageJson => coverage.write_json(&mut out),
                    Form::Lcov => coverage.write_lcov(&mut out),
                    _ => coverage.write_text(&mut out),
                }
            }
            (None, form) => self.write_stacks(form.unwrap_or(Form::Folded), files_or_stdin, decode, &mut out)?,
        };
        Ok(quiet(result.and_then(|()| out.flush()))?)
    }

    /// Writes the stacks of the input.
    fn write_stacks(
        &self,
        form: Form,
        files: &[PathBuf],
        decode: &Decode<'_>,
        out: &mut impl Write,
    ) -> Result<io::Result<()>, Failure> {
        if form == Form::Pprof && io::stdout().is_terminal() {
            return Err(Failure::Misused("--as pprof writes binary data: redirect it to a file".to_owned()));
        }
        let mut collected = Collected::default();
        read(files, decode, |item| collected.add(&item))?;
        collected.finish();
        let shown = self.shown(&collected)?;
        let Shown { source, counted: quantity, .. } = shown;
        let Some(stacks) = collected.stacks(source) else { return Ok(Ok(())) };
        let is_wanted = |process: &str| self.agent.is_none() || shown.processes.iter().any(|(it, _)| *it == process);
        let (is_several, is_labelled): (bool, bool) =
            (shown.processes.len() > 1, matches!(form, Form::Pprof | Form::Speedscope));
        let keeps_process = form == Form::Pprof || (is_several && form != Form::Top);
        let stacks = stacks.merged(is_wanted, keeps_process, is_labelled);
        let total = stacks.totals()[quantity.column()];
        summary(&collected, &shown, total, form);
        if stacks.cut() > 0 {
            let cut = counted(stacks.cut(), "call");
            say(format_args!(
                "{cut} are added to their callers: there are too many different stacks, or too deep ones"
            ));
        }
        let title = shown.title(total);
        Ok(match form {
            Form::Flamegraph => flamegraph::write(&stacks, quantity, &title, out),
            Form::Pprof => pprof::write(&stacks, &shown.about(&title), out),
            Form::Speedscope => speedscope::write(&stacks, quantity, &title, out),
            Form::Top => report::write_top(&stacks, quantity, out),
            Form::Tree => report::write_tree(&stacks, quantity, out),
            Form::Folded | Form::Heap | Form::Coverage | Form::CoverageJson | Form::Lcov => {
                stacks.write_folded(quantity.column(), quantity.folded_divisor(), None, out)
            }
        })
    }

    /// What is shown: the quantity, of which source, of which processes.
    fn shown<'a>(&self, collected: &'a Collected) -> Result<Shown<'a>, Failure> {
        let wanted = self.sample.map(Counted::from);
        let can_show = |source: &Source| wanted.is_none_or(|wanted| source.quantities().contains(&wanted));
        let source = Source::ALL.into_iter().filter(can_show).find(|source| collected.events(*source) > 0);
        let Some(source) = source else {
            let words = match wanted {
                None | Some(Counted::Cpu) => "cpu",
                Some(Counted::Wall | Counted::Calls) => "calls, no spans",
                Some(Counted::Allocations) => "allocations",
                Some(Counted::HeapBytes | Counted::HeapObjects) => "the heap",
            };
            return Err(Failure::Failed(format!("no samples of {words} in the input{}", also(collected, None))));
        };
        let all = collected.processes(source);
        let mut processes = all.clone();
        if let Some(agent) = &self.agent {
            processes.retain(|(process, _)| process.contains(agent.as_str()));
            // A whole name is not a part of others.
            if let Some(exact) = processes.iter().find(|(process, _)| process == agent) {
                processes = vec![*exact];
            }
            if processes.is_empty() {
                let there: Vec<String> = all.iter().map(|(process, _)| format!("\n  there is {process}")).collect();
                return Err(Failure::Failed(format!("no process {agent:?} in the input{}", there.concat())));
            }
        }
        let counted = wanted.unwrap_or(source.quantities()[0]);
        Ok(Shown { source, counted, processes })
    }

    /// The dumps that are compared: of two files, or two numbers in one input.
    fn two(&self, two: &[PathBuf], files: &[PathBuf], decode: &Decode<'_>) -> Result<[Heap; 2], Failure> {
        let [a, b] = two else { return Err(Failure::Misused("--compare takes A and B".to_owned())) };
        if files.is_empty() {
            let of = |file: &PathBuf| heap(Wanted::LastWhole, true, std::slice::from_ref(file), decode);
            return Ok([of(a)?, of(b)?]);
        }
        if files.iter().any(|file| file == Path::new("-")) {
            return Err(Failure::Misused(
                "--compare A B -: stdin cannot be read twice; write it to a file first".to_owned(),
            ));
        }
        let number = |text: &PathBuf| {
            let number = text.to_str().and_then(|text| text.parse().ok());
            number.ok_or_else(|| Failure::Misused("--compare A B FILE: A and B must be numbers of dumps".to_owned()))
        };
        let (a, b) = (number(a)?, number(b)?);
        let of = |number| heap(Wanted::Number(number), true, files, decode);
        Ok([of(a)?, of(b)?])
    }
}

/// Passes the profile items of the files to `take`: first those of event files in order, then those of other files in order.
fn read(files: &[PathBuf], decode: &Decode<'_>, mut take: impl FnMut(Item<'_>)) -> Result<(), Failure> {
    if !decode.takes_event_files {
        let files = files.iter().map(|file| Input::new(file)).collect();
        return (decode.decode)(files, &mut |batch| events::items(batch).for_each(&mut take));
    }
    let mut captures = Vec::new();
    for path in files {
        let name = path.display();
        let failed = |error: io::Error| Failure::Failed(format!("{name}: {error}"));
        let mut input = Input::new(path);
        match EventFile::open(input.open().map_err(failed)?).map_err(failed)? {
            Ok(events) => {
                let lines = events.read(&mut take).map_err(failed)?;
                if let Some(first) = lines.first_skipped {
                    let skipped = counted(lines.skipped, "line");
                    say(format_args!("{name}: {skipped} could not be read, the first of them line {first}"));
                }
            }
            Err(opened) => captures.push(Input { opened: Some(opened), ..input }),
        }
    }
    if captures.is_empty() {
        return Ok(());
    }
    (decode.decode)(captures, &mut |batch| events::items(batch).for_each(&mut take))
}

/// The sources that are not shown, in words.
fn also(collected: &Collected, shown: Option<Source>) -> String {
    let others = Source::ALL.into_iter().filter(|source| Some(*source) != shown && collected.events(*source) > 0);
    let others: Vec<String> = others.map(|source| source.words(collected.events(source))).collect();
    if others.is_empty() { String::new() } else { format!("; {} are left out", others.join(", ")) }
}

/// Reports on stderr what is shown.
fn summary(collected: &Collected, shown: &Shown<'_>, total: u64, form: Form) {
    let total = match shown.counted {
        Counted::Cpu => String::new(),
        Counted::Wall => format!(", {} of self time", report::value(Counted::Wall, total)),
        Counted::HeapBytes => format!(", {}", counted(total, "byte")),
        Counted::Calls => format!(", {}", counted(total, "call")),
        Counted::Allocations | Counted::HeapObjects => format!(", {}", counted(total, "object")),
    };
    let unit = if form == Form::Folded && shown.counted == Counted::Wall { "; values are microseconds" } else { "" };
    let words = shown.source.words(shown.events());
    say(format_args!("{words}{total}{unit}{}", also(collected, Some(shown.source))));
    if shown.processes.len() > 1 {
        for (process, about) in &shown.processes {
            let words = shown.source.words(about.events);
            say(format_args!("  {process}: {words}"));
        }
        say("  --agent NAME shows one of these processes");
    }
    if shown.is_incomplete() {
        say("some deep frames were folded into their callers when the samples were made");
    }
    if collected.early_traces() > 0 && shown.source == Source::Spans {
        let early = counted(collected.early_traces(), "trace");
        say(format_args!("{early} were summed up before the end of the input: later spans of them have no parent"));
    }
}

fn coverage(files: &[PathBuf], decode: &Decode<'_>) -> Result<Coverage, Failure> {
    let mut coverage = Coverage::default();
    read(files, decode, |item| match item {
        Item::Method(method) => coverage.add(&method),
        Item::Lines(lines) => coverage.add_lines(&lines),
        Item::Call(call) if call.step == Step::Entry => {
            coverage.add(&Method {
                agent: call.agent,
                id: call.method,
                function: call.function,
                runs: 1,
                told: Told::Entry,
            });
        }
        Item::Span(span) => {
            coverage.add(&Method { agent: span.agent, id: None, function: span.name, runs: 1, told: Told::Span });
        }
        Item::Sample(Sample { counted: Counted::Calls, value, agent, frames, .. }) => {
            if let Some(function) = frames.into_iter().next().and_then(|frame| frame.function) {
                coverage.add(&Method { agent, id: None, function, runs: value, told: Told::Sample });
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
    if coverage.is_empty() {
        return Err(Failure::Failed("no method in the input".to_owned()));
    }
    Ok(coverage)
}

fn heap(wanted: Wanted, keeps_objects: bool, files: &[PathBuf], decode: &Decode<'_>) -> Result<Heap, Failure> {
    let mut dumps = Dumps::new(wanted, keeps_objects);
    read(files, decode, |item| match item {
        Item::Object(object) => dumps.object(&object),
        Item::DumpEnd(dump) => dumps.end(&dump),
        _ => {}
    })?;
    let lacking = |name: &Name| if name.is_whole() { "" } else { " (not whole)" };
    let (heap, others) = dumps.finish().map_err(|names| {
        let kind = if wanted == Wanted::LastWhole { "whole heap dump" } else { "such heap dump" };
        let there: Vec<String> = names.iter().map(|name| format!("\n  there is {name}{}", lacking(name))).collect();
        Failure::Failed(format!("no {kind} in the input{}", there.concat()))
    })?;
    let name = heap.name();
    say(format_args!("{name}{}", lacking(name)));
    for other in &others {
        say(format_args!("  there is also {other}{}", lacking(other)));
    }
    Ok(heap)
}
