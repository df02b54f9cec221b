//! The grammar of a SPEC: one line of text that names a device or a stack of them.
//!
//! ```text
//! spec     = path | scheme ":" rest | name "(" [ argument { "," argument } ] ")"
//! argument = [ key "=" ] spec
//! path     = text with a "/" in it, or that begins with "."
//! ```
//! A path or value that contains `,`, `(`, `)` or `"`, or begins or ends with a space, must be in double quotes, where
//! `\` escapes the next character: `stats("/data/a,b.img")`, `file:"/data/(1).img"`. Spaces around arguments are
//! ignored.
//!
//! Owns: converting text to a tree and back, with the position of every part. Leaves to [`registry`](crate::DeviceRegistry):
//! the meaning of names.

use std::fmt;

/// The longest SPEC that is accepted. *Units*: bytes.
pub const SPEC_BYTES_MAX: usize = 64 * 1024;

/// The deepest nesting of parentheses that is accepted.
pub const SPEC_DEPTH_MAX: usize = 32;

/// A mistake in a SPEC, and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError {
    /// The position of the error, in characters from 0.
    pub position: usize,
    /// The expected and the found text.
    pub message: String,
}

impl SpecError {
    pub(crate) fn new(position: usize, message: impl Into<String>) -> SpecError {
        SpecError { position, message: message.into() }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at character {}: {}", self.position + 1, self.message)
    }
}

/// A SPEC, or a value inside one, as a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// The start of the SPEC, in characters from 0.
    pub position: usize,
    /// The content of the SPEC.
    pub form: SpecForm,
}

/// The two shapes of a SPEC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpecForm {
    /// Plain text, without its quotes: a path, `scheme:rest`, or the value of an option.
    Text(String),
    /// `name(argument,…)`.
    Call {
        /// The name before the parenthesis.
        name: String,
        /// The text between the parentheses.
        arguments: Vec<SpecArgument>,
    },
}

/// One argument of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecArgument {
    /// The start of the argument, in characters from 0.
    pub position: usize,
    /// The option's name, if it has one.
    pub key: Option<String>,
    /// The value.
    pub value: DeviceSpec,
}

impl DeviceSpec {
    /// Reads a SPEC.
    ///
    /// *Errors*: the position of the mistake, and the expected text.
    pub fn parse(text: &str) -> Result<DeviceSpec, SpecError> {
        if text.len() > SPEC_BYTES_MAX {
            return Err(SpecError::new(0, format!("the SPEC has {} bytes, at most {SPEC_BYTES_MAX}", text.len())));
        }
        let mut parser = SpecParser { characters: text.chars().collect(), position: 0 };
        let spec = parser.spec(0)?;
        match parser.peek() {
            None => Ok(spec),
            Some(found) => Err(SpecError::new(
                parser.position,
                format!("\"{found}\" is one too many; a path that has it stands in double quotes"),
            )),
        }
    }

    /// The name and the rest, if the SPEC has the form `scheme:rest`.
    pub fn scheme(&self) -> Option<(&str, &str)> {
        let SpecForm::Text(text) = &self.form else { return None };
        let (name, rest) = text.split_once(':')?;
        is_name(name).then_some((name, rest))
    }

    /// The path, if the SPEC is a path without a scheme.
    pub fn path(&self) -> Option<&str> {
        match &self.form {
            SpecForm::Text(text) if self.scheme().is_none() && (text.contains('/') || text.starts_with('.')) => {
                Some(text)
            }
            _ => None,
        }
    }
}

/// Whether a text can name a device, a filter or an option.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-' | '+'))
}

/// Writes a text for use in a SPEC, in quotes if it needs them.
pub(crate) fn quoted(text: &str) -> String {
    let edge = text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace);
    if !text.is_empty() && !edge && !text.contains([',', '(', ')', '"', '\\', '=']) {
        return text.to_owned();
    }
    let mut out = String::from('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.form {
            SpecForm::Text(text) => f.write_str(&quoted(text)),
            SpecForm::Call { name, arguments } => {
                write!(f, "{name}(")?;
                for (index, argument) in arguments.iter().enumerate() {
                    if index > 0 {
                        f.write_str(",")?;
                    }
                    if let Some(key) = &argument.key {
                        write!(f, "{key}=")?;
                    }
                    write!(f, "{}", argument.value)?;
                }
                f.write_str(")")
            }
        }
    }
}

struct SpecParser {
    characters: Vec<char>,
    position: usize,
}

impl SpecParser {
    fn peek(&self) -> Option<char> {
        self.characters.get(self.position).copied()
    }

    fn skip_spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.position += 1;
        }
    }

    /// Reads one SPEC, up to the end, or up to a `,` or `)` that belongs to the enclosing SPEC.
    fn spec(&mut self, depth: usize) -> Result<DeviceSpec, SpecError> {
        self.skip_spaces();
        let position = self.position;
        let text = self.text()?;
        if self.peek() != Some('(') {
            if self.position == position {
                return Err(SpecError::new(position, "a device or value is missing here"));
            }
            return Ok(DeviceSpec { position, form: SpecForm::Text(text) });
        }
        if !is_name(&text) {
            let message = format!("\"{text}\" is no name; a path with a parenthesis stands in double quotes");
            return Err(SpecError::new(position, message));
        }
        if depth == SPEC_DEPTH_MAX {
            return Err(SpecError::new(position, format!("nested deeper than {SPEC_DEPTH_MAX}")));
        }
        self.position += 1;
        let arguments = self.arguments(depth + 1)?;
        self.skip_spaces();
        Ok(DeviceSpec { position, form: SpecForm::Call { name: text, arguments } })
    }

    /// Reads the arguments and the closing parenthesis.
    fn arguments(&mut self, depth: usize) -> Result<Vec<SpecArgument>, SpecError> {
        let opened = self.position - 1;
        let mut arguments = Vec::new();
        self.skip_spaces();
        if self.peek() == Some(')') {
            self.position += 1;
            return Ok(arguments);
        }
        loop {
            self.skip_spaces();
            let position = self.position;
            let key = self.key();
            let value = self.spec(depth)?;
            arguments.push(SpecArgument { position, key, value });
            match self.peek() {
                Some(',') => self.position += 1,
                Some(')') => {
                    self.position += 1;
                    return Ok(arguments);
                }
                Some(found) => {
                    return Err(SpecError::new(self.position, format!("expected \",\" or \")\", found \"{found}\"")));
                }
                None => {
                    let message = format!("\")\" is missing for the \"(\" at character {}", opened + 1);
                    return Err(SpecError::new(self.position, message));
                }
            }
        }
    }

    /// Reads `key=` if it comes next.
    fn key(&mut self) -> Option<String> {
        let rest = &self.characters[self.position..];
        let length = rest.iter().position(|&c| c == '=')?;
        let key: String = rest[..length].iter().collect();
        if !is_name(&key) {
            return None;
        }
        self.position += length + 1;
        Some(key)
    }

    /// Reads text up to an unquoted `,`, `(` or `)`, without the unquoted spaces at its end.
    fn text(&mut self) -> Result<String, SpecError> {
        let mut text = String::new();
        let mut kept = 0;
        while let Some(c) = self.peek() {
            match c {
                ',' | '(' | ')' => break,
                '"' => {
                    self.quoted(&mut text)?;
                    kept = text.len();
                    continue;
                }
                _ => text.push(c),
            }
            if !c.is_whitespace() {
                kept = text.len();
            }
            self.position += 1;
        }
        text.truncate(kept);
        Ok(text)
    }

    fn quoted(&mut self, text: &mut String) -> Result<(), SpecError> {
        let opened = self.position;
        self.position += 1;
        while let Some(c) = self.peek() {
            self.position += 1;
            match c {
                '"' => return Ok(()),
                '\\' => match self.peek() {
                    Some(escaped) => {
                        text.push(escaped);
                        self.position += 1;
                    }
                    None => break,
                },
                _ => text.push(c),
            }
        }
        Err(SpecError::new(opened, "the double quote that begins here does not end"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(spec: &DeviceSpec) -> &str {
        match &spec.form {
            SpecForm::Text(text) => text,
            SpecForm::Call { .. } => panic!("{spec} is a call"),
        }
    }

    #[test]
    fn forms_are_told_apart() {
        assert_eq!(DeviceSpec::parse("memory:2G").unwrap().scheme(), Some(("memory", "2G")));
        assert_eq!(DeviceSpec::parse("nbd+unix:/run/a").unwrap().scheme(), Some(("nbd+unix", "/run/a")));
        assert_eq!(DeviceSpec::parse("/data/a:b.img").unwrap().path(), Some("/data/a:b.img"));
        assert_eq!(DeviceSpec::parse("./a").unwrap().path(), Some("./a"));
        let word = DeviceSpec::parse("adaptive").unwrap();
        assert_eq!((word.scheme(), word.path(), text(&word)), (None, None, "adaptive"));
    }

    #[test]
    fn calls_nest_and_keep_positions() {
        let spec = DeviceSpec::parse("error( stats(memory:2G) , rate=1%,when=\"/tmp/a,b\")").unwrap();
        let SpecForm::Call { name, arguments } = &spec.form else { panic!() };
        assert_eq!((name.as_str(), arguments.len()), ("error", 3));
        assert_eq!((arguments[0].position, arguments[1].position), (7, 26));
        assert_eq!(arguments[1].key.as_deref(), Some("rate"));
        assert_eq!(text(&arguments[2].value), "/tmp/a,b");
        assert_eq!(spec.to_string(), "error(stats(memory:2G),rate=1%,when=\"/tmp/a,b\")");
    }

    #[test]
    fn quotes_keep_special_characters() {
        for path in ["/a,b", "/a(1)", "/a\"b", "/a\\b", "/ a ", " /a", "/a=b", "/é,ü"] {
            let line = format!("stats({})", quoted(path));
            let SpecForm::Call { arguments, .. } = DeviceSpec::parse(&line).unwrap().form else { panic!() };
            assert_eq!((arguments[0].key.as_ref(), text(&arguments[0].value)), (None, path), "{line}");
        }
        assert_eq!(text(&DeviceSpec::parse("file:\"/a,b\"").unwrap()), "file:/a,b");
    }

    #[test]
    fn errors_point_at_the_place() {
        for (line, position) in [
            ("", 0),
            ("stats(", 6),
            ("stats(memory:1G", 15),
            ("stats(memory:1G))", 16),
            ("stats(memory:1G,)", 16),
            ("stats(,)", 6),
            ("stats(\"/a", 6),
            ("/data/a(1).img", 0),
            ("/data/a,b", 7),
            ("stats(memory:1G)x", 16),
        ] {
            let error = DeviceSpec::parse(line).unwrap_err();
            assert_eq!(error.position, position, "{line}: {error}");
        }
    }

    #[test]
    fn spec_limits_depth_and_length() {
        let nested = |depth: usize| format!("{}memory:1G{}", "s(".repeat(depth), ")".repeat(depth));
        assert!(DeviceSpec::parse(&nested(SPEC_DEPTH_MAX)).is_ok());
        assert!(DeviceSpec::parse(&nested(SPEC_DEPTH_MAX + 1)).is_err());
        assert!(DeviceSpec::parse(&format!("/{}", "a".repeat(SPEC_BYTES_MAX - 1))).is_ok());
        assert!(DeviceSpec::parse(&format!("/{}", "a".repeat(SPEC_BYTES_MAX))).is_err());
    }
}
