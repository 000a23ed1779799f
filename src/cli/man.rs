//! `tributary man`: a man page of the program and of each command.

use std::fs;
use std::path::PathBuf;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::{CommandLineError, print};

/// Print a man page, or write all of them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary man | man -l -                     the page of the program
  tributary man agents tell | man -l -         the page of a command
  tributary man --dir /usr/local/share/man/man1")]
pub(super) struct Arguments {
    /// The command that the page is about [default: the program]
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    command: Vec<String>,
    /// Write the pages of all commands into this directory, as tributary.1, tributary-run.1, …
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

const EXIT_STATUS: &[(&str, &str)] = &[
    ("0", "Success. Also when the reader of stdout, for example head(1), closes it."),
    (
        "1",
        "Failure: a port, a file or another daemon could not be used, or a decoded event was not written by a sink. The last line \
         on stderr has the reason. Invalid input of agents is no failure.",
    ),
    ("2", "The arguments or the configuration are invalid."),
];
const ENVIRONMENT: &[(&str, &str)] = &[
    ("TRIBUTARY_LOG", "What is logged, if --log-level is not given."),
    ("NO_COLOR", "If set and not empty, output on a terminal has no colors. TERM=dumb has the same effect."),
    ("NOTIFY_SOCKET, WATCHDOG_USEC, LISTEN_FDS", "Set by systemd(1): readiness, watchdog, sockets."),
    ("Other variables", "Texts of the configuration take them: \"${NAME}\", \"${NAME:-default}\"."),
];
const FILES: &[(&str, &str)] = &[
    ("./tributary.toml", "The configuration, if --config is not given."),
    ("/etc/tributary/tributary.toml", "The configuration, if there is none in the working directory."),
];
const SIGNALS: &[(&str, &str)] = &[
    (
        "SIGTERM, SIGINT, SIGQUIT",
        "The daemon accepts no further connections, ends the open ones, writes what its sinks have in their queues, and exits, within \
         limits.shutdown_grace. A second signal ends it within seconds: sinks have one second, and the agents of traced Java programs \
         drop what they have not sent, which does no harm to the programs. A third one ends it at once, and traced Java programs hang.",
    ),
    ("SIGHUP", "The daemon reads its configuration and TLS files again, and reopens its files."),
    (
        "SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGXFSZ, SIGXCPU",
        "The daemon ignores them, and logs that it does.",
    ),
];

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    let mut program = super::Arguments::command();
    program.build();
    let Some(dir) = &arguments.dir else {
        let mut command = &program;
        for name in &arguments.command {
            let unknown = || CommandLineError::Misused(format!("there is no command {}", arguments.command.join(" ")));
            command = command.find_subcommand(name).ok_or_else(unknown)?;
        }
        let names: Vec<_> = std::iter::once("tributary").chain(arguments.command.iter().map(String::as_str)).collect();
        return print(&page(command, &names.join("-"))?);
    };
    fs::create_dir_all(dir).map_err(|error| CommandLineError::Failed(format!("{}: {error}", dir.display())))?;
    for (name, command) in pages(&program, "tributary") {
        let path = dir.join(format!("{name}.1"));
        fs::write(&path, page(command, &name)?)
            .map_err(|error| CommandLineError::Failed(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

/// A command and all below it, each with the name of its page.
fn pages<'c>(command: &'c Command, name: &str) -> Vec<(String, &'c Command)> {
    let below = command.get_subcommands().filter(|below| below.get_name() != "help");
    let below = below.flat_map(|below| pages(below, &format!("{name}-{}", below.get_name())));
    std::iter::once((name.to_owned(), command)).chain(below).collect()
}

/// The page of a command. `name` is the name of the page: `tributary-agents-tell`.
fn page(command: &Command, name: &str) -> Result<Vec<u8>, CommandLineError> {
    let man = Man::new(command.clone().name(name.to_owned()).disable_help_subcommand(true)).title(name);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if command.get_after_help().is_some() {
        man.render_extra_section(&mut page)?;
    }
    let mut more = vec![("EXIT STATUS", EXIT_STATUS)];
    if name == "tributary" {
        more.extend([("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)]);
    }
    if matches!(name, "tributary" | "tributary-run") {
        more.push(("SIGNALS", SIGNALS));
    }
    let mut roff = Roff::new();
    for (title, entries) in more {
        roff.control("SH", [title]);
        for (term, text) in entries {
            roff.control("TP", []).text([bold(*term)]).text([roman(*text)]);
        }
    }
    if name != "tributary" {
        roff.control("SH", ["SEE ALSO"]).text([bold("tributary"), roman("(1)")]);
    }
    roff.to_writer(&mut page)?;
    Ok(page)
}
