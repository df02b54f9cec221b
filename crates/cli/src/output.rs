//! The standard output of commands: text for people, JSON for programs.
//!
//! Owns: the two forms. Promises: if the reader closes the pipe, the command ends without a message.

use std::io::{self, Write};

use nectary_block::format_size;
use serde::Serialize;
use serde_json::Value;

use crate::exit::CommandFailure;

/// Prints text.
pub fn text(text: &str) -> Result<(), CommandFailure> {
    write(text.as_bytes())
}

/// Prints JSON, indented, with a newline at its end.
pub fn json(value: &impl Serialize) -> Result<(), CommandFailure> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    write(text.as_bytes())
}

/// Writes bytes to the standard output.
pub fn write(bytes: &[u8]) -> Result<(), CommandFailure> {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(i32::from(crate::exit::FAILED)),
        result => Ok(result?),
    }
}

/// A value in a list of figures, without quotation marks.
fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Formats figures as lines `name: value`, with nested ones indented; values named `…_bytes` are also shown as a size.
pub fn figures(value: &Value, indent: usize) -> String {
    let Value::Object(members) = value else { return String::new() };
    let mut text = String::new();
    for (name, value) in members {
        let shown = name.replace('_', " ");
        match value {
            Value::Null => {}
            Value::Object(_) => text += &format!("{:indent$}{shown}\n{}", "", figures(value, indent + 2)),
            Value::Array(elements) if elements.iter().any(Value::is_object) => {
                let deeper = indent + 2;
                text += &format!("{:indent$}{shown}\n", "");
                for (index, element) in elements.iter().enumerate() {
                    text += &format!("{:deeper$}{}.\n{}", "", index + 1, figures(element, deeper + 2));
                }
            }
            Value::Array(elements) => {
                let words: Vec<String> = elements.iter().map(word).collect();
                let words = if words.is_empty() { "none".to_owned() } else { words.join(", ") };
                text += &format!("{:indent$}{shown}: {words}\n", "");
            }
            Value::String(value) => text += &format!("{:indent$}{shown}: {value}\n", ""),
            value => match value.as_u64().filter(|_| name.ends_with("_bytes") || name == "bytes") {
                Some(bytes) if bytes >= 1024 => {
                    text += &format!("{:indent$}{shown}: {bytes} ({})\n", "", format_size(bytes));
                }
                _ => text += &format!("{:indent$}{shown}: {value}\n", ""),
            },
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_show_readable_sizes() {
        let value =
            serde_json::json!({"span_bytes": 4_294_967_296_u64, "counts": {"puts": 7}, "stopped": null, "device": "a"});
        let text = figures(&value, 0);
        assert!(text.contains("span bytes: 4294967296 (4G)\n"), "{text}");
        assert!(text.contains("counts\n  puts: 7\n"), "{text}");
        assert!(!text.contains("stopped"), "{text}");
        let lists = serde_json::json!({ "peers": [{ "name": "a" }, { "name": "b" }], "urls": ["x", "y"], "left": [] });
        let text = figures(&lists, 0);
        assert!(text.contains("peers\n  1.\n    name: a\n  2.\n    name: b\n"), "{text}");
        assert!(text.contains("urls: x, y\n") && text.contains("left: none\n"), "{text}");
    }
}
