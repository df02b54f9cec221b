//! The command line, described as JSON: from this, the manual pages and completions of packages are made
//! (`packaging/pages`).
//!
//! Owns: the form of the description. Promises: it has every command and option that a help page shows, and no hidden
//! one. It has no other user, so it may change with any version.

use clap::CommandFactory;
use clap::builder::{OsStr, StyledStr};
use serde_json::{Value, json};

use crate::arguments::NectaryArguments;
use crate::exit::{CommandFailure, GOOD};
use crate::output;

/// Prints the description.
pub fn run() -> Result<u8, CommandFailure> {
    output::json(&of_command(&NectaryArguments::command()))?;
    Ok(GOOD)
}

fn of_command(command: &clap::Command) -> Value {
    let commands: Vec<Value> = command.get_subcommands().filter(|it| !it.is_hide_set()).map(of_command).collect();
    let arguments: Vec<Value> = command.get_arguments().filter(|it| !it.is_hide_set()).map(of_argument).collect();
    json!({
        "name": command.get_name(),
        "version": command.get_version(),
        "about": text(command.get_about()),
        "long_about": text(command.get_long_about()),
        "examples": text(command.get_before_help()),
        "after": text(command.get_after_help()),
        "aliases": command.get_visible_aliases().collect::<Vec<_>>(),
        "arguments": arguments,
        "commands": commands,
    })
}

fn of_argument(argument: &clap::Arg) -> Value {
    let is_flag = !argument.get_action().takes_values();
    let values: Vec<Value> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !is_flag && !value.is_hide_set())
        .map(|value| json!({ "name": value.get_name(), "help": text(value.get_help()) }))
        .collect();
    let defaults: Vec<String> = argument.get_default_values().iter().filter(|_| !is_flag).map(shown).collect();
    json!({
        "id": argument.get_id().as_str(),
        "long": argument.get_long(),
        "short": argument.get_short(),
        "is_positional": argument.is_positional(),
        "is_flag": is_flag,
        "is_required": argument.is_required_set(),
        "is_repeated": matches!(argument.get_action(), clap::ArgAction::Append | clap::ArgAction::Count),
        "value_names": argument.get_value_names().unwrap_or_default().iter().map(|it| it.as_str()).collect::<Vec<_>>(),
        "value_hint": format!("{:?}", argument.get_value_hint()),
        "values": values,
        "defaults": defaults,
        "help": text(argument.get_help()),
        "long_help": text(argument.get_long_help()),
        "heading": argument.get_help_heading(),
    })
}

fn text(text: Option<&StyledStr>) -> Option<String> {
    text.map(ToString::to_string)
}

fn shown(value: &OsStr) -> String {
    value.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hidden options are left out too.
    #[test]
    fn hidden_commands_are_left_out() {
        let value = of_command(&NectaryArguments::command());
        let names = |of: &Value| -> Vec<String> {
            let commands = of["commands"].as_array().into_iter().flatten();
            commands.filter_map(|it| it["name"].as_str().map(str::to_owned)).collect()
        };
        let found = names(&value);
        assert!(found.contains(&"proxy".to_owned()) && !found.contains(&"describe".to_owned()), "{found:?}");
        let proxy = value["commands"].as_array().and_then(|all| all.iter().find(|it| it["name"] == "proxy"));
        let arguments = proxy.and_then(|it| it["arguments"].as_array()).expect("options");
        let memory = arguments.iter().find(|it| it["long"] == "memory").expect("an option");
        assert_eq!((memory["value_names"][0].as_str(), memory["is_flag"].as_bool()), (Some("SIZE"), Some(false)));
        assert!(!value.to_string().contains("leave-terminal"));
    }
}
