//! The curve of a probe.

use super::*;

#[test]
fn logarithms_are_those_of_the_mathematics() {
    for number in [1, 2, 3, 10, 983, 65_536, 1 << 40, u64::MAX] {
        let exact = (number as f64).log2() * 65_536.0;
        assert!((log2(number) as f64 - exact).abs() < 2.0, "{number}");
    }
    for number in [1, 2, 7, 100, 1_000, 30_000] {
        assert_eq!(exp2(log2(number)), number);
    }
    assert_eq!((exp2(-5), log2(0)), (1, 0));
}

#[test]
fn the_default_curve_expects_fewer_puts_than_writes_and_more_on_a_faster_device() {
    let mut before = 0;
    for writes in [10, 81, 200, 1_000, 5_390, 20_000, 100_000] {
        let device = OpCost { fixed_nanos: 1_000_000_000 / writes, picos_per_byte: 0 };
        let puts = Curve::DEFAULT.expected(device, 16 << 10).per_second(16 << 10).unwrap();
        assert!(puts > before && puts * 2 > writes && puts <= writes, "{writes}: {puts}");
        before = puts;
    }
}

#[test]
fn a_curve_scales_the_cost_and_keeps_its_distance_outside_of_the_fit() {
    let same = Curve { coefficients: [0, 1 << 16, 0], range: [0, 30 << 16] };
    let device = OpCost { fixed_nanos: 84_000, picos_per_byte: 1_000 };
    assert_eq!(same.expected(device, 16_000), device);
    let half = Curve { coefficients: [-(1 << 16), 1 << 16, 0], ..same };
    let twice = OpCost { fixed_nanos: 168_000, picos_per_byte: 2_000 };
    assert_eq!(half.expected(device, 16_000), twice);
    assert_eq!(half.expected(OpCost::default(), 16_000), OpCost::default());
    // y = 2x - 10 up to x = 10: from there on y = x.
    let bent = Curve { coefficients: [-10 << 16, 2 << 16, 0], range: [8 << 16, 10 << 16] };
    let puts = [6, 8, 9, 10, 14].map(|x| bent.log2_puts(x << 16) >> 16);
    assert_eq!(puts, [4, 6, 8, 10, 14]);
    let squared = Curve { coefficients: [0, 0, 1 << 14], range: [0, 30 << 16] };
    assert_eq!(squared.log2_puts(6 << 16), 9 << 16);
}
