//! Deliberate defects, one at a time, by which tests show that their checks catch them: the part that crates share.
//!
//! Owns: planting one in a process, and the question whether it is. Promises: without the feature `planted` of a crate
//! every question of it is answered `false` at compile time, so that no user's build has its defects. Leaves to others:
//! which defects there are, each in the `planted` module of its crate.

/// Makes the `Bug` of a crate, each as `Name = number => "the name that is printed"`, and `plant` and `planted` for them.
///
/// `Bug::EVERY`, `Bug::name` and `plant` are there with the crate's feature `planted` alone.
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
            /// Every one of them.
            pub const EVERY: &'static [Bug] = &[$(Bug::$bug),*];

            /// The name that is printed.
            pub fn name(self) -> &'static str {
                match self {
                    $(Bug::$bug => $name,)*
                }
            }
        }

        #[cfg(feature = "planted")]
        static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

        /// Plants one bug in this process, or none.
        #[cfg(feature = "planted")]
        pub fn plant(bug: Option<Bug>) {
            PLANTED.store(bug.map_or(0, |bug| bug as u8), std::sync::atomic::Ordering::SeqCst);
        }

        /// Whether `bug` is planted.
        #[cfg(feature = "planted")]
        pub(crate) fn planted(bug: Bug) -> bool {
            PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
        }

        /// Whether `bug` is planted: never, in this build.
        #[cfg(not(feature = "planted"))]
        #[inline(always)]
        pub(crate) fn planted(_: Bug) -> bool {
            false
        }
    };
}
