//! Converts the memory of a screen, which Xvfb keeps in a file, to a PNG.

use super::action::Screen;

/// The positions of the relevant words of the header.
const HEADER_SIZE: usize = 0;
const VERSION: usize = 1;
const FORMAT: usize = 2;
const WIDTH: usize = 4;
const HEIGHT: usize = 5;
const BYTE_ORDER: usize = 7;
const BITS_PER_PIXEL: usize = 11;
const BYTES_PER_LINE: usize = 12;
const RED: usize = 14;
const GREEN: usize = 15;
const BLUE: usize = 16;
const COLORS: usize = 19;
const WORDS: usize = 25;

/// The size of one entry of the colour table.
const COLOR_BYTES: usize = 12;

/// The largest file of such a screen: the header, a colour table, the pixels.
pub(super) fn max_bytes(screen: Screen) -> u64 {
    (64 << 10) + 4 * u64::from(screen.width) * u64::from(screen.height)
}

/// Why the screen cannot be converted.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScreenError {
    /// The file is not an X window dump.
    #[error("the memory file of the screen is not an X window dump")]
    NotADump,
    /// The dump has an unsupported depth.
    #[error("the screen has {0} bits per pixel, expected 32")]
    Depth(u32),
    /// The dump cannot be written as a picture.
    #[error("cannot encode the screen as a PNG")]
    Png(#[from] png::EncodingError),
}

/// Converts the memory of a screen to a PNG. Processes inside can write there, so nothing in it is trusted.
pub(super) fn to_png(dump: &[u8], screen: Screen) -> Result<Vec<u8>, ScreenError> {
    let word = |place: usize| {
        let bytes = dump.get(4 * place..4 * place + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    let words: Vec<u32> = (0..WORDS).map(word).collect::<Option<_>>().ok_or(ScreenError::NotADump)?;
    let is_dump = words[VERSION] == 7
        && words[FORMAT] == 2
        && words[WIDTH] == u32::from(screen.width)
        && words[HEIGHT] == u32::from(screen.height);
    if !is_dump {
        return Err(ScreenError::NotADump);
    }
    if words[BITS_PER_PIXEL] != 32 {
        return Err(ScreenError::Depth(words[BITS_PER_PIXEL]));
    }
    let size = |place: usize| usize::try_from(words[place]).ok();
    let colors = size(COLORS).and_then(|colors| colors.checked_mul(COLOR_BYTES));
    let start = size(HEADER_SIZE).zip(colors).and_then(|(header, colors)| header.checked_add(colors));
    let pixels = start.and_then(|start| dump.get(start..)).ok_or(ScreenError::NotADump)?;
    let (width, height) = (usize::from(screen.width), usize::from(screen.height));
    let line = size(BYTES_PER_LINE).filter(|line| *line >= 4 * width).ok_or(ScreenError::NotADump)?;
    let shifts = [RED, GREEN, BLUE].map(|place| words[place].trailing_zeros().min(31));
    let is_big_endian = words[BYTE_ORDER] == 1;
    let mut picture = Vec::with_capacity(3 * width * height);
    for row in 0..height {
        let row = line.checked_mul(row).and_then(|start| pixels.get(start..)?.get(..4 * width));
        for pixel in row.ok_or(ScreenError::NotADump)?.chunks_exact(4) {
            let bytes = [pixel[0], pixel[1], pixel[2], pixel[3]];
            let pixel = if is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
            picture.extend(shifts.map(|shift| (pixel >> shift) as u8));
        }
    }
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, u32::from(screen.width), u32::from(screen.height));
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&picture)?;
    writer.finish()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SCREEN: Screen = Screen { width: 2, height: 2 };

    /// A dump of four pixels as Xvfb writes it, with padding after each line.
    fn dump(pixels: [u32; 4]) -> Vec<u8> {
        let mut words = [0_u32; WORDS];
        words[HEADER_SIZE] = 4 * WORDS as u32 + 4;
        words[VERSION] = 7;
        words[FORMAT] = 2;
        words[WIDTH] = 2;
        words[HEIGHT] = 2;
        words[BITS_PER_PIXEL] = 32;
        words[BYTES_PER_LINE] = 12;
        [words[RED], words[GREEN], words[BLUE]] = [0xff_0000, 0xff00, 0xff];
        words[COLORS] = 1;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend(b"Xvf\0");
        bytes.extend([0; COLOR_BYTES]);
        for line in pixels.chunks(2) {
            bytes.extend(line.iter().flat_map(|pixel| pixel.to_le_bytes()));
            bytes.extend([0xee; 4]);
        }
        bytes
    }

    #[test]
    fn a_screen_becomes_a_picture() {
        let file = to_png(&dump([0xff_0000, 0x00_ff00, 0x00_00ff, 0x12_3456]), SCREEN).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut picture = [0; 12];
        reader.next_frame(&mut picture).unwrap();
        assert_eq!(picture, [255, 0, 0, 0, 255, 0, 0, 0, 255, 0x12, 0x34, 0x56]);
    }

    #[test]
    fn invalid_dumps_are_reported() {
        let good = dump([0; 4]);
        assert!(matches!(to_png(&[], SCREEN), Err(ScreenError::NotADump)));
        assert!(matches!(to_png(&good[..good.len() - 12], SCREEN), Err(ScreenError::NotADump)));
        assert!(matches!(to_png(&good, Screen { width: 3, height: 2 }), Err(ScreenError::NotADump)));
        let mut shallow = good;
        shallow[4 * BITS_PER_PIXEL + 3] = 16;
        assert!(matches!(to_png(&shallow, SCREEN), Err(ScreenError::Depth(16))));
    }

    proptest! {
        #[test]
        fn no_header_makes_it_panic(at in 0..WORDS, value: u32, length in 0..200_usize) {
            let mut dump = dump([1, 2, 3, 4]);
            dump[4 * at..4 * at + 4].copy_from_slice(&value.to_be_bytes());
            let _ = to_png(&dump, SCREEN);
            let _ = to_png(&dump[..length.min(dump.len())], SCREEN);
        }
    }
}
