//! Writes collected stacks in the form that was asked for, and a summary on stderr.

use std::io::{self, IsTerminal, Write};

use super::super::{CommandLineError, counted, say};
use tributary_profile::collected::{Collected, Shown, StackSource};
use tributary_profile::sandwich::{NameError, Sandwich};
use tributary_profile::stacks::Stacks;
use tributary_profile::timeline::ShownTimeline;
use tributary_profile::{Counted, SampleKind, firefox, flamegraph, perfetto, pprof, report, speedscope};

/// A form of stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum StackForm {
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
}

impl StackForm {
    /// Whether it shows the single items with their times instead of sums.
    pub(in crate::cli) fn has_times(self) -> bool {
        matches!(self, StackForm::Perfetto | StackForm::Firefox)
    }
}

/// The name of a quantity: one of [`OWN`], or a type of samples that a profiler names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Samples(String);

/// The quantities of our own.
const OWN: [(&str, Counted); 6] = [
    ("cpu", Counted::Cpu),
    ("wall", Counted::Wall),
    ("calls", Counted::Calls),
    ("allocations", Counted::Allocations),
    ("heap-bytes", Counted::HeapBytes),
    ("heap-objects", Counted::HeapObjects),
];

impl std::str::FromStr for Samples {
    type Err = std::convert::Infallible;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Ok(Samples(name.to_owned()))
    }
}

impl Samples {
    /// CPU samples.
    pub(in crate::cli) fn cpu() -> Samples {
        Samples("cpu".to_owned())
    }

    /// The quantities with this name, the best one first.
    fn counted(&self) -> Vec<Counted> {
        let own = OWN.iter().find(|(name, _)| *name == self.0).map(|(_, counted)| *counted);
        own.into_iter().chain(SampleKind::named(&self.0).into_iter().map(Counted::Profiled)).collect()
    }
}

/// What of the collected stacks is shown, and how.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Picture<'a> {
    pub(in crate::cli) form: StackForm,
    /// The quantity. `None`: the first that was collected.
    pub(in crate::cli) sample: Option<Samples>,
    /// The process, by its name or a part of it. `None`: all.
    pub(in crate::cli) agent: Option<&'a str>,
    /// The function whose callers and callees are shown, by its name or a part of it. `None`: all functions.
    pub(in crate::cli) function: Option<&'a str>,
}

impl Picture<'_> {
    /// Refuses a form that stdout cannot show.
    pub(in crate::cli) fn check(&self) -> Result<(), CommandLineError> {
        if self.form == StackForm::Pprof && io::stdout().is_terminal() {
            return Err(CommandLineError::Misused("--as pprof writes binary data: redirect it to a file".to_owned()));
        }
        if self.function.is_some() && self.form != StackForm::Tree {
            return Err(CommandLineError::Misused("--function needs --as tree".to_owned()));
        }
        Ok(())
    }

    /// Writes the stacks, after the last item was added.
    pub(in crate::cli) fn write(
        &self,
        collected: &Collected,
        out: &mut impl Write,
    ) -> Result<io::Result<()>, CommandLineError> {
        let form = self.form;
        let shown = self.shown(collected)?;
        let Shown { source, counted: quantity, .. } = shown;
        let Some(stacks) = collected.stacks(source) else { return Ok(Ok(())) };
        let is_wanted = |process: &str| self.agent.is_none() || shown.processes.iter().any(|(it, _)| *it == process);
        if let Some(timeline) = collected.timeline() {
            return self.write_timeline(&timeline.shown(is_wanted, quantity), &shown, out);
        }
        let is_several = shown.processes.len() > 1;
        let is_labelled = matches!(form, StackForm::Pprof | StackForm::Speedscope);
        let keeps_process = form == StackForm::Pprof || (is_several && form != StackForm::Top);
        let stacks = stacks.merged(is_wanted, keeps_process, is_labelled);
        let total = stacks.totals()[quantity.column()];
        let sandwich = self.function.map(|name| sandwich(&stacks, quantity, name)).transpose()?;
        summary(collected, &shown, total, form);
        if stacks.cut() > 0 {
            let cut = counted(stacks.cut(), "call");
            say(format_args!(
                "{cut} are added to their callers: there are too many different stacks, or too deep ones"
            ));
        }
        let title = shown.title(total);
        Ok(match form {
            StackForm::Flamegraph => flamegraph::write(&stacks, quantity, &title, out),
            StackForm::Pprof => pprof::write(&stacks, &shown.about(&title), out),
            StackForm::Speedscope => speedscope::write(&stacks, quantity, &title, out),
            StackForm::Top => report::write_top(&stacks, quantity, out),
            StackForm::Tree => match &sandwich {
                Some(sandwich) => report::write_sandwich(sandwich, &stacks, quantity, out),
                None => report::write_tree(&stacks, quantity, out),
            },
            StackForm::Folded => stacks.write_folded(quantity.column(), quantity.folded_divisor(), None, out),
            // They are written above: `Collected` has a timeline for these forms.
            StackForm::Perfetto | StackForm::Firefox => Ok(()),
        })
    }

    /// Writes the items with their times.
    fn write_timeline(
        &self,
        items: &ShownTimeline<'_>,
        shown: &Shown<'_>,
        out: &mut impl Write,
    ) -> Result<io::Result<()>, CommandLineError> {
        if items.is_empty() {
            return Err(CommandLineError::Failed("nothing in the input has a time".to_owned()));
        }
        items.words().iter().for_each(say);
        let title = shown.processes_text();
        Ok(match self.form {
            StackForm::Firefox => firefox::write(items, &title, out),
            _ => perfetto::write(items, &title, out),
        })
    }

    /// What is shown: the quantity, the source, the processes.
    fn shown<'a>(&self, collected: &'a Collected) -> Result<Shown<'a>, CommandLineError> {
        let wanted = self.sample.as_ref().map(Samples::counted);
        let of_source = |source: &StackSource| {
            let quantities = source.quantities();
            match &wanted {
                None => quantities.first().copied(),
                Some(wanted) => wanted.iter().find(|counted| quantities.contains(counted)).copied(),
            }
        };
        let mut sources = collected.sources().into_iter();
        let Some((source, counted)) = sources.find_map(|source| Some((source, of_source(&source)?))) else {
            let words = match self.sample.as_ref().map(|sample| sample.0.as_str()) {
                None | Some("cpu") => "cpu",
                Some("wall" | "calls") => "calls, no spans",
                Some("heap-bytes" | "heap-objects") => "the heap",
                Some(name) => name,
            };
            return Err(CommandLineError::Failed(format!(
                "no samples of {words} in the input{}",
                also(collected, None)
            )));
        };
        let all = collected.processes(source);
        let mut processes = all.clone();
        if let Some(agent) = self.agent {
            processes.retain(|(process, _)| process.contains(agent));
            // A whole name is not a part of others.
            if let Some(exact) = processes.iter().find(|(process, _)| *process == agent) {
                processes = vec![*exact];
            }
            if processes.is_empty() {
                let there: Vec<String> = all.iter().map(|(process, _)| format!("\n  there is {process}")).collect();
                return Err(CommandLineError::Failed(format!("no process {agent:?} in the input{}", there.concat())));
            }
        }
        Ok(Shown { source, counted, processes })
    }
}

/// The function with this name or part of a name, with its callers and callees.
fn sandwich(stacks: &Stacks, quantity: Counted, name: &str) -> Result<Sandwich, CommandLineError> {
    Sandwich::new(stacks, quantity.column(), name).map_err(|error| {
        let text = match error {
            NameError::Unknown => format!("no function {name:?} in the input"),
            NameError::Ambiguous(names) => {
                let there: Vec<String> = names.iter().map(|name| format!("\n  there is {name}")).collect();
                format!("several functions have {name:?} in their names{}", there.concat())
            }
        };
        CommandLineError::Failed(text)
    })
}

/// The sources that are not shown, in words.
fn also(collected: &Collected, shown: Option<StackSource>) -> String {
    let others = collected.sources().into_iter().filter(|source| Some(*source) != shown);
    let others: Vec<String> = others.map(|source| source.words(collected.events(source))).collect();
    if others.is_empty() { String::new() } else { format!("; {} are left out", others.join(", ")) }
}

/// Reports on stderr what is shown.
fn summary(collected: &Collected, shown: &Shown<'_>, total: u64, form: StackForm) {
    let total = match shown.counted {
        Counted::Cpu => String::new(),
        Counted::Wall => format!(", {} of self time", report::value(Counted::Wall, total)),
        Counted::HeapBytes => format!(", {}", counted(total, "byte")),
        Counted::Calls => format!(", {}", counted(total, "call")),
        Counted::Allocations | Counted::HeapObjects => format!(", {}", counted(total, "object")),
        profiled => format!(", {}", report::value(profiled, total)),
    };
    let unit = if form == StackForm::Folded && shown.counted.unit() == "nanoseconds" {
        "; values are microseconds"
    } else {
        ""
    };
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
    if collected.early_traces() > 0 && shown.source == StackSource::Spans {
        let early = counted(collected.early_traces(), "trace");
        say(format_args!("{early} were summed up before the end of the input: later spans of them have no parent"));
    }
}
