//! The lines of files, each within a limit.

use std::io::{self, BufRead, Read as _};

/// The maximum length of a line. Without it, a file without line ends would fill the memory.
const MAX_LINE_BYTES: usize = 1 << 30;

/// Reads to the end of a line, and appends it to `line` with its line end. Returns its length, which is 0 at the end of
/// the file.
pub fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    read_within(MAX_LINE_BYTES, reader, line)
}

fn read_within(limit: usize, reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    let length = reader.by_ref().take(limit as u64).read_until(b'\n', line)?;
    if length == limit && !line.ends_with(b"\n") {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is longer than 1 GiB"));
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn a_line_without_an_end_is_read_only_to_the_limit() {
        let mut line = Vec::new();
        let error = read_within(1000, &mut BufReader::new(io::repeat(b'x')), &mut line).unwrap_err();
        assert_eq!((error.kind(), line.len()), (io::ErrorKind::InvalidData, 1000));
    }

    #[test]
    fn a_line_of_the_maximum_length_and_the_last_line_are_read() {
        let mut file = &b"1234\nlast"[..];
        let mut line = Vec::new();
        assert_eq!(read_within(5, &mut file, &mut line).unwrap(), 5);
        line.clear();
        assert_eq!(read_within(5, &mut file, &mut line).unwrap(), 4);
        assert_eq!(line, b"last");
        assert_eq!(read_within(5, &mut file, &mut line).unwrap(), 0);
    }
}
