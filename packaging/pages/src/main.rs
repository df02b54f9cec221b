//! Makes manual pages and completions of the `nectary` command: `nectary describe | nectary-pages FOLDER`.
//!
//! Owns: the way from the description to files: `man/nectary-proxy.1`, `completions/bash/nectary`, `completions/zsh/_nectary`,
//! `completions/fish/nectary.fish`. Leaves to others: what the command line is (`nectary describe`), the form of the
//! files (clap_mangen and clap_complete).

use std::fs;
use std::io::{Write, stdin};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use serde::Deserialize;

/// The name of the command.
const NAME: &str = "nectary";

/// A command, as it is described.
#[derive(Debug, Deserialize)]
struct DescribedCommand {
    name: String,
    version: Option<String>,
    about: Option<String>,
    long_about: Option<String>,
    examples: Option<String>,
    after: Option<String>,
    aliases: Vec<String>,
    arguments: Vec<DescribedArgument>,
    commands: Vec<DescribedCommand>,
}

/// An option or an argument.
#[derive(Debug, Deserialize)]
struct DescribedArgument {
    id: String,
    long: Option<String>,
    short: Option<char>,
    is_positional: bool,
    is_flag: bool,
    is_required: bool,
    is_repeated: bool,
    value_names: Vec<String>,
    value_hint: String,
    values: Vec<DescribedValue>,
    defaults: Vec<String>,
    help: Option<String>,
    long_help: Option<String>,
    heading: Option<String>,
}

/// A word that an option allows.
#[derive(Debug, Deserialize)]
struct DescribedValue {
    name: String,
    help: Option<String>,
}

fn main() -> Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [folder] = arguments.as_slice() else { bail!("usage: nectary describe | nectary-pages FOLDER") };
    let described: DescribedCommand = serde_json::from_reader(stdin()).context("the description of the command")?;
    manuals(&described, "", &folder.join("man"))?;
    let command = command_of(&described);
    for (shell, file) in
        [(Shell::Bash, "bash/nectary"), (Shell::Zsh, "zsh/_nectary"), (Shell::Fish, "fish/nectary.fish")]
    {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), NAME, &mut text);
        write(&folder.join("completions").join(file), &text)?;
    }
    Ok(())
}

/// Writes the manual page of a command, and those of its subcommands.
fn manuals(described: &DescribedCommand, parent: &str, folder: &Path) -> Result<()> {
    let name = if parent.is_empty() { described.name.clone() } else { format!("{parent}-{}", described.name) };
    let command = command_of(described).name(name.clone()).display_name(name.clone()).bin_name(name.replace('-', " "));
    // Pages of `help` would say what is here.
    let mut command = command.disable_help_subcommand(true);
    let usage = command.render_usage().to_string();
    let man = Man::new(command);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    literal(&mut page, "SYNOPSIS", Some(usage.trim_start_matches("Usage: ")))?;
    man.render_description_section(&mut page)?;
    literal(&mut page, "EXAMPLES", described.examples.as_deref().map(|text| text.trim_start_matches("Examples:")))?;
    if !described.arguments.is_empty() {
        man.render_options_section(&mut page)?;
    }
    if !described.commands.is_empty() {
        man.render_subcommands_section(&mut page)?;
    }
    literal(&mut page, "EXIT CODES", described.after.as_deref().map(|text| text.trim_start_matches("Exit codes:")))?;
    section(&mut page, "SEE ALSO", &see_also(described, &name, parent))?;
    write(&folder.join(format!("{name}.1")), &page)?;
    described.commands.iter().try_for_each(|command| manuals(command, &name, folder))
}

/// The names of the pages around a page.
fn see_also(described: &DescribedCommand, name: &str, parent: &str) -> String {
    let mut pages: Vec<String> =
        described.commands.iter().map(|command| format!("{name}-{}(1)", command.name)).collect();
    if !parent.is_empty() {
        pages.insert(0, format!("{parent}(1)"));
    }
    pages.join(", ")
}

/// Writes a section with a text, if there is one.
fn section(page: &mut impl Write, title: &str, text: &str) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    roff.text([roman(text)]);
    Ok(roff.to_writer(page)?)
}

/// Writes a section whose lines stay as they are.
fn literal(page: &mut impl Write, title: &str, text: Option<&str>) -> Result<()> {
    let Some(text) = text.map(|text| text.trim_matches('\n')).filter(|text| !text.is_empty()) else { return Ok(()) };
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    roff.control("nf", []);
    text.lines().for_each(|line| _ = roff.text([roman(line)]));
    roff.control("fi", []);
    Ok(roff.to_writer(page)?)
}

/// The command that a description describes.
fn command_of(described: &DescribedCommand) -> clap::Command {
    let mut command = clap::Command::new(described.name.clone()).visible_aliases(described.aliases.clone());
    if let Some(version) = &described.version {
        command = command.version(version.clone());
    }
    if let Some(about) = &described.about {
        command = command.about(about);
    }
    if let Some(about) = &described.long_about {
        command = command.long_about(about);
    }
    if !described.commands.is_empty() {
        command = command.subcommand_required(true);
    }
    command.args(described.arguments.iter().map(argument_of)).subcommands(described.commands.iter().map(command_of))
}

fn argument_of(described: &DescribedArgument) -> Arg {
    let mut argument = Arg::new(described.id.clone()).required(described.is_required);
    if let Some(long) = &described.long {
        argument = argument.long(long.clone());
    }
    if let Some(short) = described.short {
        argument = argument.short(short);
    }
    argument = argument.action(match (described.is_flag, described.is_repeated) {
        (true, _) => ArgAction::SetTrue,
        (false, true) => ArgAction::Append,
        (false, false) => ArgAction::Set,
    });
    if described.is_positional && described.is_repeated {
        argument = argument.num_args(1..);
    }
    if !described.is_flag {
        argument = argument.value_hint(hint_of(described)).default_values(described.defaults.clone());
        if !described.value_names.is_empty() {
            argument = argument.value_names(described.value_names.clone());
        }
        if !described.values.is_empty() {
            let value = |it: &DescribedValue| match &it.help {
                Some(help) => PossibleValue::new(it.name.clone()).help(help),
                None => PossibleValue::new(it.name.clone()),
            };
            argument = argument.value_parser(described.values.iter().map(value).collect::<Vec<_>>());
        }
    }
    if let Some(help) = &described.help {
        argument = argument.help(help);
    }
    if let Some(help) = &described.long_help {
        argument = argument.long_help(help);
    }
    if let Some(heading) = &described.heading {
        argument = argument.help_heading(heading.clone());
    }
    argument
}

/// What a shell offers as a value.
fn hint_of(described: &DescribedArgument) -> ValueHint {
    match (described.value_hint.as_str(), described.value_names.first().map(String::as_str)) {
        ("DirPath", _) | (_, Some("DIR")) => ValueHint::DirPath,
        ("FilePath", _) | (_, Some("FILE")) => ValueHint::FilePath,
        // A device is most often a path.
        ("AnyPath", _) | (_, Some("PATH" | "SPEC" | "DISK" | "DEVICE" | "STORE")) => ValueHint::AnyPath,
        _ => ValueHint::Unknown,
    }
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    let folder = path.parent().context("a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
