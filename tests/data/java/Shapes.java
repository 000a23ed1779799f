package demo;

import java.util.Comparator;
import java.util.function.IntSupplier;

abstract class Shapes implements Comparator<String> {
    static final int[] COUNT = {1, 2};

    abstract int area();

    native int nothing();

    int scale(int by) {
        return area() * by;
    }

    int scale(long by) {
        IntSupplier twice = () -> 2 * area();
        return twice.getAsInt();
    }

    @Override
    public int compare(String a, String b) {
        return a.length() - b.length();
    }

    interface Named {
        String name();

        default String grüße() {
            return name();
        }
    }
}
