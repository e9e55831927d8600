//! What the readers and writers of tar archives share. Archives are not trusted.

use std::{
    ffi::OsString,
    io::{self, BufReader, Cursor, Read},
    os::unix::ffi::OsStringExt as _,
    path::{Component, Path, PathBuf},
    thread,
};

use rustix::fs::{Gid, Timespec, Timestamps, Uid};
use tar::{Entry, EntryType, Header};

/// The prefix of extended attributes in the headers of an archive.
pub(crate) const XATTR: &str = "SCHILY.xattr.";

/// The attribute with the capabilities of a program.
pub(crate) const CAPABILITIES: &str = "security.capability";

/// The size of a header, and the unit of archives.
const BLOCK: usize = 512;

/// The position and length of the checksum in a header.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// The content of a file that may be compressed, by its first bytes: gzip, bzip2, xz, zstd, or none of them.
pub(crate) fn decompressed(mut file: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let start = read_start(&mut file, 6)?;
    let magic = start.clone();
    let file = BufReader::with_capacity(1 << 16, Cursor::new(start).chain(file));
    Ok(match magic.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::Decoder::with_buffer(file)?),
        [b'B', b'Z', b'h', ..] => Box::new(bzip2_rs::DecoderReader::new(file)),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => Box::new(xz(file)?),
        _ => Box::new(file),
    })
}

/// The decoder of xz only writes, so it runs in a thread and writes to a pipe.
fn xz(mut file: impl io::BufRead + Send + 'static) -> io::Result<impl Read + Send> {
    let (reader, mut writer) = io::pipe()?;
    thread::Builder::new().name("xz".into()).spawn(move || {
        // A damaged file ends early, which the reader of the archive reports.
        if let Err(error) = lzma_rs::xz_decompress(&mut file, &mut writer) {
            tracing::debug!(?error, "cannot decompress a file");
        }
    })?;
    Ok(reader)
}

/// Reads up to this many bytes, fewer only at the end.
pub(crate) fn read_start(file: &mut impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(most);
    file.take(most as u64).read_to_end(&mut start)?;
    Ok(start)
}

/// Whether a block is the header of an archive: its checksum is right.
pub(crate) fn is_header(block: &[u8]) -> bool {
    let Some(block) = block.get(..BLOCK) else { return false };
    let text = String::from_utf8_lossy(&block[CHECKSUM]).into_owned();
    let Ok(written) = u32::from_str_radix(text.trim_matches(['\0', ' ']), 8) else { return false };
    let sum = |(place, byte): (usize, &u8)| if CHECKSUM.contains(&place) { 32 } else { u32::from(*byte) };
    block.iter().enumerate().map(sum).sum::<u32>() == written
}

/// A path of an archive, relative to the root.
pub(crate) fn inside(path: &[u8]) -> io::Result<PathBuf> {
    let path = PathBuf::from(OsString::from_vec(path.to_vec()));
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(invalid("a path that leaves the image"));
            }
        }
    }
    Ok(clean)
}

/// The owner of an entry.
pub(crate) fn owner(header: &Header) -> io::Result<(Uid, Gid)> {
    let id = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX).ok_or_else(|| invalid("an owner"));
    Ok((Uid::from_raw(id(header.uid()?)?), Gid::from_raw(id(header.gid()?)?)))
}

/// The extended attributes of a file that mean something in a container.
pub(crate) fn attributes(entry: &mut Entry<'_, impl Read>) -> Vec<(String, Vec<u8>)> {
    let Ok(Some(extensions)) = entry.pax_extensions() else { return Vec::new() };
    let pairs = extensions.filter_map(Result::ok).filter_map(|extension| {
        let name = extension.key().ok()?.strip_prefix(XATTR)?;
        let is_known = name == CAPABILITIES || name.starts_with("user.");
        is_known.then(|| (name.to_owned(), extension.value_bytes().to_vec()))
    });
    pairs.collect()
}

/// A modification time in seconds.
pub(crate) fn times(seconds: u64) -> Timestamps {
    let time = Timespec { tv_sec: i64::try_from(seconds).unwrap_or_default(), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

/// The header of an entry to write.
pub(crate) fn header(kind: EntryType, mode: u32, (uid, gid): (u32, u32), time: u64, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode & 0o7777);
    header.set_uid(uid.into());
    header.set_gid(gid.into());
    header.set_mtime(time);
    header.set_size(size);
    header
}

/// An error about an entry that is not allowed.
pub(crate) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} is not allowed"))
}

/// Joins two paths without the trailing slash that joining an empty path adds.
pub(crate) fn join(base: &Path, relative: &Path) -> PathBuf {
    if relative.as_os_str().is_empty() { base.to_owned() } else { base.join(relative) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_header_is_known_by_its_checksum() {
        let mut header = header(EntryType::Regular, 0o644, (0, 0), 0, 3);
        header.set_path("file").unwrap();
        header.set_cksum();
        assert!(is_header(header.as_bytes()));
        let mut other = *header.as_bytes();
        other[0] ^= 1;
        assert!(!is_header(&other) && !is_header(&[0; BLOCK]) && !is_header(b"text"));
    }

    #[test]
    fn every_compression_is_read() {
        let text = b"content that is compressed".repeat(50);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).unwrap();
        let mut xz = Vec::new();
        lzma_rs::xz_compress(&mut text.as_slice(), &mut xz).unwrap();
        // `printf hello | bzip2 | xxd`
        let bzip2 = [
            0x42, 0x5a, 0x68, 0x39, 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, 0x19, 0x31, 0x65, 0x3d, 0x00, 0x00,
            0x00, 0x81, 0x00, 0x02, 0x44, 0xa0, 0x00, 0x21, 0x9a, 0x68, 0x33, 0x4d, 0x07, 0x33, 0x8b, 0xb9,
            0x22, 0x9c, 0x28, 0x48, 0x0c, 0x98, 0xb2, 0x9e, 0x80,
        ];
        let read = |bytes: Vec<u8>| {
            let mut content = Vec::new();
            decompressed(Cursor::new(bytes)).unwrap().read_to_end(&mut content).unwrap();
            content
        };
        for compressed in
            [text.clone(), gzip.finish().unwrap(), xz, zstd::encode_all(text.as_slice(), 1).unwrap()]
        {
            assert_eq!(read(compressed), text);
        }
        assert_eq!(read(bzip2.to_vec()), b"hello");
        assert_eq!(read(Vec::new()), b"");
    }
}
