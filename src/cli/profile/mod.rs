//! `tributary decode rbkit --as …` and `--compare`: profiles of decoded bytes, or of the event files of a sink.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::input::Input;
use super::{Failure, counted, quiet, say};
use crate::event::Batch;
use crate::profile::compare::Comparison;
use crate::profile::events::{self, EventFile};
use crate::profile::heap::{Dumps, Heap, Name, Wanted};
use crate::profile::stacks::Stacks;
use crate::profile::{Counted, Item, flamegraph};
use crate::protocol::Protocol;

#[derive(Debug, clap::Args)]
#[group(id = "profile")]
#[command(next_help_heading = "Profiles (rbkit)")]
pub(super) struct Arguments {
    /// Print a profile instead of events. Files can be event files of a sink too, also compressed ones
    #[arg(long = "as", value_name = "PROFILE")]
    form: Option<Form>,
    /// The samples of the profile [default: cpu if the input has CPU samples, else allocations]
    #[arg(long, value_name = "SAMPLES")]
    sample: Option<Samples>,
    /// The heap dump, by its number [default: the last complete one]
    #[arg(long, value_name = "ID", conflicts_with = "compare")]
    dump: Option<u64>,
    /// Print the objects that are in heap dump B and not in A. Two files, or the numbers of two dumps in FILE
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with = "form")]
    compare: Option<Vec<PathBuf>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// Stacks and their sums, one line each, for flame graph tools
    Folded,
    /// A flame graph as SVG
    Flamegraph,
    /// The objects of the heap, by class and place
    Heap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Samples {
    /// CPU samples
    Cpu,
    /// Allocated objects
    Allocations,
}

/// Decodes files, and passes each batch on.
type Decode<'a> = dyn Fn(Vec<Input>, &mut dyn FnMut(&Batch)) -> Result<(), Failure> + 'a;

impl Arguments {
    /// Whether the arguments ask for a profile instead of events.
    ///
    /// # Errors
    /// The protocol has no profiles, or an option needs another option.
    pub(super) fn is_wanted(&self, protocol: Protocol) -> Result<bool, Failure> {
        let is_wanted = self.form.is_some() || self.compare.is_some();
        let is_heap = matches!(self.form, Some(Form::Heap));
        let misused = |words: &str| Err(Failure::Misused(words.to_owned()));
        match () {
            () if self.sample.is_some() && !matches!(self.form, Some(Form::Folded | Form::Flamegraph)) => {
                misused("--sample needs --as folded or --as flamegraph")
            }
            () if self.dump.is_some() && !is_heap => misused("--dump needs --as heap"),
            () if is_wanted && protocol != Protocol::Rbkit => misused("--as and --compare: only rbkit has profiles"),
            () => Ok(is_wanted),
        }
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
            (None, form) => {
                let (stacks, counted) = stacks(self.sample, files_or_stdin, decode)?;
                match form {
                    Some(Form::Flamegraph) => {
                        let title = format!("rbkit: {}", words(counted));
                        flamegraph::write(&stacks, counted, &title, &mut out)
                    }
                    _ => stacks.write_folded(None, &mut out),
                }
            }
        };
        Ok(quiet(result.and_then(|()| out.flush()))?)
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
    decode(captures, &mut |batch| events::items(batch).for_each(&mut take))
}

fn stacks(samples: Option<Samples>, files: &[PathBuf], decode: &Decode<'_>) -> Result<(Stacks, Counted), Failure> {
    let (mut cpu, mut allocations) = (Stacks::default(), Stacks::default());
    read(files, decode, |item| {
        if let Item::Sample(sample) = item {
            let stacks = match sample.counted {
                Counted::Cpu => &mut cpu,
                Counted::Allocations => &mut allocations,
            };
            stacks.add(&sample);
        }
    })?;
    let is_cpu = samples.map_or(cpu.samples() > 0 || allocations.samples() == 0, |samples| samples == Samples::Cpu);
    let ((stacks, what), (others, other)) = match is_cpu {
        true => ((cpu, Counted::Cpu), (allocations, Counted::Allocations)),
        false => ((allocations, Counted::Allocations), (cpu, Counted::Cpu)),
    };
    let also = match others.samples() {
        0 => String::new(),
        count => format!("; {} of {} are left out", counted(count, "sample"), words(other)),
    };
    if stacks.samples() == 0 {
        return Err(Failure::Failed(format!("no samples of {} in the input{also}", words(what))));
    }
    let total = match what {
        Counted::Cpu => String::new(),
        Counted::Allocations => format!(", {}", counted(stacks.total(), "object")),
    };
    say(format_args!("{} of {}{total}{also}", counted(stacks.samples(), "sample"), words(what)));
    if stacks.cut() > 0 {
        say(format_args!("{} end early: there are too many different stacks", counted(stacks.cut(), "sample")));
    }
    Ok((stacks, what))
}

fn words(counted: Counted) -> &'static str {
    match counted {
        Counted::Cpu => "cpu",
        Counted::Allocations => "allocations",
    }
}

fn heap(wanted: Wanted, keeps_objects: bool, files: &[PathBuf], decode: &Decode<'_>) -> Result<Heap, Failure> {
    let mut dumps = Dumps::new(wanted, keeps_objects);
    read(files, decode, |item| match item {
        Item::Object(object) => dumps.object(&object),
        Item::DumpEnd(dump) => dumps.end(&dump),
        Item::Sample(_) => {}
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
