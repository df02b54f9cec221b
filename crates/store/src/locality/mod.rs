//! Placing related objects: hints, groups that are packed side by side, and whether a read reads the whole group.

pub mod arrange;
pub mod clusters;
pub mod groups;
pub mod hints;
