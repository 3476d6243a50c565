//! How full a square is, as a character and as a strength of colour. In both, only an empty square
//! looks empty, and only a full one looks full.

/// The colour of what is used. Readers with colour vision deficiencies can tell it from the other
/// colours of a picture (Okabe and Ito).
pub const DATA: &str = "#0072b2";

/// Characters from empty to full.
const SHADES: [char; 6] = [' ', '.', ':', '+', '#', '@'];

/// The character of a used share (0..=1). Only 0 is blank and only 1 is the full character, so
/// that an almost free square differs from a free one, and an almost full square from a full one.
#[must_use]
pub fn character(share: f64) -> char {
    let step = match share {
        s if s <= 0.0 => 0,
        s if s >= 1.0 => 5,
        s if s < 0.1 => 1,
        s if s < 0.4 => 2,
        s if s < 0.75 => 3,
        _ => 4,
    };
    SHADES[step]
}

/// Steps of colour: 0 is free, anything used is at least 1, and only a full square is [`STEPS`].
const STEPS: u8 = 12;

/// The step of a used share (0..=1).
#[must_use]
pub fn step(share: f64) -> u8 {
    if share <= 0.0 {
        return 0;
    }
    (1..STEPS)
        .rev()
        .find(|&step| share >= f64::from(step) / f64::from(STEPS))
        .map_or(1, |step| if share >= 1.0 { STEPS } else { step })
}

/// Opacity of the colour at a step: a pale tint at step 1, opaque at the last step.
#[must_use]
pub fn opacity(step: u8) -> f64 {
    0.25 + 0.75 * f64::from(step) / f64::from(STEPS)
}
