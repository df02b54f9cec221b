//! The code that crates share to plant deliberate defects. With such defects, tests show that their checks catch
//! errors.
//!
//! Owns: planting one defect in a process, and the query whether a defect is planted. Promises: without a crate's
//! feature `planted`, the query is `false` at compile time, so that no user's build has the defects. Leaves to others:
//! the defects, which each crate lists in its `planted` module.

/// Makes the enum `Bug` of a crate and the functions `plant` and `planted`. Each bug has one line:
/// `Name = number => "the printed name"`.
///
/// `Bug::EVERY`, `Bug::name` and `plant` exist only with the crate's feature `planted`.
#[doc(hidden)]
#[macro_export]
macro_rules! planted_bugs {
    ($($(#[doc = $doc:literal])* $bug:ident = $number:literal => $name:literal,)*) => {
        /// A defect that can be planted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Bug {
            $($(#[doc = $doc])* $bug = $number,)*
        }

        #[cfg(feature = "planted")]
        impl Bug {
            /// All bugs.
            pub const EVERY: &'static [Bug] = &[$(Bug::$bug),*];

            /// The printed name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Bug::$bug => $name,)*
                }
            }
        }

        #[cfg(feature = "planted")]
        static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

        /// Plants `bug` in this process; `None` removes the planted bug.
        #[cfg(feature = "planted")]
        pub fn plant(bug: Option<Bug>) {
            PLANTED.store(bug.map_or(0, |bug| bug as u8), std::sync::atomic::Ordering::SeqCst);
        }

        /// Whether `bug` is planted.
        #[cfg(feature = "planted")]
        pub(crate) fn planted(bug: Bug) -> bool {
            PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
        }

        /// Whether `bug` is planted; in this build it never is.
        #[cfg(not(feature = "planted"))]
        #[inline(always)]
        pub(crate) fn planted(_: Bug) -> bool {
            false
        }
    };
}
