import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.stream.IntStream;

/** Names and assertions of one check. */
final class Test {
  /** Initials of names, so that names are spread over all regions. */
  private static final String INITIALS = "0123456789abcdefghijklmnopqrstuvwxyz";

  final String host;
  final int port;
  final String prefix;

  Test(String check, String node) {
    int colon = node.lastIndexOf(':');
    host = node.substring(0, colon);
    port = Integer.parseInt(node.substring(colon + 1));
    prefix = check.replace(' ', '-') + "-" + Long.toHexString(System.nanoTime());
  }

  /** Returns a name that no other check uses. Consecutive numbers lie in different regions. */
  String name(int number) {
    return INITIALS.charAt(number * 7 % INITIALS.length()) + ":" + prefix + ":" + number;
  }

  /** Returns several names, of which no two have the same initial if they are at most 36. */
  String[] names(int first, int count) {
    return IntStream.range(first, first + count).mapToObj(this::name).toArray(String[]::new);
  }

  /** Returns the names with one more. */
  static String[] with(String[] names, String... more) {
    String[] all = Arrays.copyOf(names, names.length + more.length);
    System.arraycopy(more, 0, all, names.length, more.length);
    return all;
  }

  static void same(String what, Object value, Object expected) {
    Object read = value instanceof Object[] array ? List.of(array) : value;
    if (!Objects.equals(read, expected)) {
      throw new AssertionError(what + ": " + read + " in place of " + expected);
    }
  }

  static void holds(String what, boolean condition, Object value) {
    if (!condition) {
      throw new AssertionError(what + ": " + value);
    }
  }

  /** Requires a time in seconds, of which at most a minute may have passed. */
  static void about(String what, long seconds, long expected) {
    holds(what, seconds <= expected && seconds > expected - 60, seconds);
  }

  /** Requires that a call fails with a text. */
  static void fails(String what, String text, Callable<?> call) {
    Object value;
    try {
      value = call.call();
    } catch (Exception failure) {
      holds(what, Main.textOf(failure).contains(text), Main.textOf(failure));
      return;
    }
    throw new AssertionError(what + " did not fail: " + value);
  }
}
