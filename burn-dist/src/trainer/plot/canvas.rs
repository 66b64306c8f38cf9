//! A canvas of pixels for plotters, written as PNG: letters come from a font that is drawn already.

use std::convert::Infallible;
use std::io::Write;

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};

/// The letter drawn for one that the font lacks.
const UNKNOWN: char = '?';

/// Pixels of red, green and blue, row by row, all white at first.
#[derive(Debug)]
pub(super) struct Canvas {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
}

impl Canvas {
    pub(super) fn new(width: u32, height: u32) -> Self {
        Self {
            width,
            height,
            rgb: vec![0xFF; 3 * width as usize * height as usize],
        }
    }

    pub(super) fn write(&self, out: impl Write) -> Result<(), png::EncodingError> {
        let mut encoder = png::Encoder::new(out, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.rgb)?;
        writer.finish()
    }
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

// Lines and areas are drawn by the trait's own methods, pixel by pixel.
impl DrawingBackend for &mut Canvas {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> Drawn {
        let inside = |at: i32, size: u32| u32::try_from(at).ok().filter(|at| *at < size);
        if let (Some(x), Some(y)) = (inside(x, self.width), inside(y, self.height)) {
            let first = 3 * (y as usize * self.width as usize + x as usize);
            let (r, g, b) = color.rgb;
            for (old, new) in self.rgb[first..first + 3].iter_mut().zip([r, g, b]) {
                let mixed = f64::from(*old) + color.alpha * (f64::from(new) - f64::from(*old));
                *old = mixed.round() as u8;
            }
        }
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, at: BackendCoord) -> Drawn {
        let (width, height) = text_size(text, style.size());
        let anchor = style.anchor();
        let left = match anchor.h_pos {
            HPos::Left => 0,
            HPos::Center => -width / 2,
            HPos::Right => -width,
        };
        let top = match anchor.v_pos {
            VPos::Top => 0,
            VPos::Center => -height / 2,
            VPos::Bottom => -height,
        };
        let (size, letter_width) = letters(style.size());
        let color = style.color();
        for (place, letter) in (0_i32..).zip(text.chars()) {
            let raster = get_raster(letter, FontWeight::Regular, size)
                .or_else(|| get_raster(UNKNOWN, FontWeight::Regular, size))
                .expect("the font has a question mark");
            for (y, row) in (0_i32..).zip(raster.rows()) {
                for (x, strength) in (0_i32..).zip(row.iter()).filter(|(_, pixel)| **pixel > 0) {
                    let (x, y) = style
                        .transform()
                        .transform(left + place * letter_width + x, top + y);
                    let alpha = color.alpha * f64::from(*strength) / 255.0;
                    self.draw_pixel((at.0 + x, at.1 + y), BackendColor { alpha, ..color })?;
                }
            }
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let (width, height) = text_size(text, style.size());
        Ok((width.unsigned_abs(), height.unsigned_abs()))
    }
}

/// The drawn size next to a wanted one, and the width of each of its letters.
fn letters(wanted: f64) -> (RasterHeight, i32) {
    let size = if wanted < 32.0 {
        RasterHeight::Size24
    } else {
        RasterHeight::Size32
    };
    (size, get_raster_width(FontWeight::Regular, size) as i32)
}

/// Width and height of a line of text.
fn text_size(text: &str, wanted: f64) -> (i32, i32) {
    let (size, letter_width) = letters(wanted);
    (text.chars().count() as i32 * letter_width, size as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plotters::prelude::*;
    use plotters::style::text_anchor::Pos;

    fn ink(canvas: &Canvas) -> Vec<(u32, u32)> {
        let dark = |at: &u32| canvas.rgb[3 * *at as usize] < 128;
        (0..canvas.width * canvas.height)
            .filter(dark)
            .map(|at| (at % canvas.width, at / canvas.width))
            .collect()
    }

    #[test]
    fn text_lies_at_its_anchor_and_turns_about_it() {
        let style = |transform| {
            TextStyle::from(("sans-serif", 26).into_font().transform(transform))
                .pos(Pos::new(HPos::Left, VPos::Top))
        };
        let mut canvas = Canvas::new(100, 100);
        (&mut canvas)
            .draw_text("iii", &style(FontTransform::None), (50, 50))
            .unwrap();
        let across = ink(&canvas);
        assert!(!across.is_empty() && across.iter().all(|(x, y)| *x >= 50 && *y >= 50));

        let mut canvas = Canvas::new(100, 100);
        (&mut canvas)
            .draw_text("iii", &style(FontTransform::Rotate270), (50, 50))
            .unwrap();
        let up = ink(&canvas);
        assert_eq!(up.len(), across.len());
        assert!(up.iter().all(|(x, y)| *x >= 50 && *y <= 50));
    }

    #[test]
    fn what_lies_outside_is_cut_off_and_unknown_letters_are_drawn() {
        let mut canvas = Canvas::new(8, 8);
        let style = TextStyle::from(("sans-serif", 40).into_font());
        (&mut canvas)
            .draw_text("\u{1F980}", &style, (-4, -4))
            .unwrap();
        assert!(canvas.rgb.iter().any(|value| *value < 0xFF));
    }
}
