//! Where in a file a value is.
//!
//! Owns: places, and values with their places. Promises: two located values are equal if their values are, wherever
//! they are.

use std::fmt;
use std::ops::Deref;

/// A place in a configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SourcePosition {
    /// The line, counted from 1; 0 if the value is not from a file.
    pub line: u32,
    /// The first character in the line, counted from 1; 0 if the value is not from a file.
    pub column: u32,
    /// How many characters of that line belong to the value; at least 1 for a value from a file.
    pub width: u32,
}

impl SourcePosition {
    /// The place of a value that is not from a file, for example of an option of the command line.
    pub const NOWHERE: SourcePosition = SourcePosition { line: 0, column: 0, width: 0 };

    /// Whether this is a place in a file.
    pub fn is_in_file(self) -> bool {
        self.line > 0
    }
}

impl fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A value with its place. Two of them are equal if their values are: the place does not count.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocatedValue<T> {
    /// The value.
    pub value: T,
    /// Where it is in the file.
    pub place: SourcePosition,
}

/// What one key of the file sets: `None` if the key is absent, so that its default applies.
pub type Setting<T> = Option<LocatedValue<T>>;

impl<T> LocatedValue<T> {
    /// A value at a place.
    pub fn new(value: T, place: SourcePosition) -> LocatedValue<T> {
        LocatedValue { value, place }
    }

    /// A value that is not from a file.
    pub fn nowhere(value: T) -> LocatedValue<T> {
        LocatedValue { value, place: SourcePosition::NOWHERE }
    }
}

impl<T: PartialEq> PartialEq for LocatedValue<T> {
    fn eq(&self, other: &LocatedValue<T>) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for LocatedValue<T> {}

impl<T> Deref for LocatedValue<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
