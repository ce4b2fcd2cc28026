//! Standard output and standard error, whose readers may go away.
//!
//! The macros of the standard library panic when a write fails. In this crate `println!`, `print!` and
//! `eprintln!` are these instead: the first failed write to standard output is recorded, and later ones write
//! nothing. If the reader closes the pipe (`| head`), loops that ask [`is_closed`] end, and this is not a
//! failure; any other error makes the command fail, through [`finish`].

use std::fmt::Arguments;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use crate::failure::{Failure, Outcome};

macro_rules! println {
    () => { $crate::output::line(format_args!("")) };
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

macro_rules! print {
    ($($text:tt)*) => { $crate::output::text(format_args!($($text)*)) };
}

macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::error_line(format_args!($($text)*)) };
}

/// The first write to standard output that failed.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Whether standard output takes no more writes.
pub(crate) fn is_closed() -> bool {
    FAILED.get().is_some()
}

/// On a terminal, what is shown again and again replaces what was shown before.
pub(crate) fn clear_screen(is_repeated: bool) {
    if is_repeated && io::stdout().is_terminal() {
        // Moves the cursor to the top left and clears the screen below it.
        print!("\x1b[H\x1b[J");
    }
}

fn write(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
    if is_closed() {
        return;
    }
    if let Err(error) = write(&mut io::stdout().lock()) {
        // If two threads fail at once, the first error is recorded.
        let _ = FAILED.set(error);
    }
}

/// Prints a line on standard output.
pub(crate) fn line(text: Arguments) {
    write(|out| writeln!(out, "{text}"));
}

/// Prints a text on standard output.
pub(crate) fn text(text: Arguments) {
    write(|out| write!(out, "{text}"));
}

/// Prints bytes on standard output.
pub(crate) fn bytes(bytes: &[u8]) {
    write(|out| out.write_all(bytes));
}

/// Flushes standard output.
pub(crate) fn flush() {
    write(|out| out.flush());
}

/// Prints a line on standard error. Its errors are dropped, since there is no place to report them.
pub(crate) fn error_line(text: Arguments) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// The result of all writes to standard output.
///
/// # Errors
/// The first failed write, unless the reader has closed the pipe.
pub(crate) fn finish() -> Outcome<()> {
    flush();
    match FAILED.get() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::of(error).while_doing("cannot write to standard output"))
        }
        _ => Ok(()),
    }
}
