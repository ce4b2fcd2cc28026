//! Versions of a filesystem.

/// The newest version of a filesystem that is known here; one with a higher version is not opened.
pub const FORMAT_VERSION: u16 = ALL_USED_VERSION;
/// The version that a filesystem is made with.
pub const FIRST_VERSION: u16 = 1;
/// The version of a filesystem in which extents may be [lost](super::Extent::is_lost). A repair raises it when
/// it records the first one.
pub const LOST_VERSION: u16 = 2;
/// The version that a filesystem is made with whose files have their contents [elsewhere](super::ELSEWHERE).
pub const ELSEWHERE_VERSION: u16 = 3;
/// The version of a filesystem in which bytes of contents elsewhere may be [redirected](super::Tag::Redirect). The first such bytes raise it.
pub const REDIRECT_VERSION: u16 = 4;
/// The version of a filesystem that may have been used without its server while clients were away that have journals. The first such use raises it.
pub const ALL_USED_VERSION: u16 = 5;
