//! What DEAR promises beyond what every policy promises.

use super::*;
