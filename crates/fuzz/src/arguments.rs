//! `--name value` arguments of the program `fuzz`.

use std::collections::HashMap;
use std::process::ExitCode;

/// The arguments of a program.
pub struct FuzzArguments {
    program: &'static str,
    values: HashMap<String, String>,
}

impl FuzzArguments {
    /// Parses the process's arguments from argument `first` on, all of the form `--name value` with a name from `names`;
    /// argument 0 is the program itself.
    ///
    /// *Errors*: prints what is wrong, or the usage if requested, and returns the exit code.
    pub fn parse_from(program: &'static str, names: &[&str], first: usize) -> Result<FuzzArguments, ExitCode> {
        let mut values = HashMap::new();
        let mut words = std::env::args().skip(first);
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").filter(|name| names.contains(name));
            match (name, words.next()) {
                (Some(name), Some(value)) => {
                    values.insert(name.to_owned(), value);
                }
                _ => {
                    let usage: Vec<String> = names.iter().map(|name| format!("[--{name} VALUE]")).collect();
                    eprintln!("{program}: usage: {program} {}", usage.join(" "));
                    return Err(if word == "--help" { ExitCode::SUCCESS } else { ExitCode::from(2) });
                }
            }
        }
        Ok(FuzzArguments { program, values })
    }

    /// Returns the number that was given for `name`, or `default` if none was given.
    ///
    /// A value that is not a number ends the program with code 2.
    pub fn number(&self, name: &str, default: u64) -> u64 {
        match self.values.get(name).map(|value| value.parse()) {
            None => default,
            Some(Ok(number)) => number,
            Some(Err(_)) => {
                eprintln!("{}: --{name} takes a whole number", self.program);
                std::process::exit(2);
            }
        }
    }

    /// Returns the value that was given for `name`, if any.
    pub fn word(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }
}
