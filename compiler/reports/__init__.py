"""What the compiler says about a program: costs, launches, drawings."""
