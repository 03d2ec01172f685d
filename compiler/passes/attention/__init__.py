"""Recognition of attention that a program writes as matrix products and softmax, and of its masks.

description          one written-out attention, as value numbers
values               constants, layouts and equality of values, through ops that only change shape or float type
match                finds written-out attention in a function body
gradients            matches its backward, in the form that autograd produces
mask_operands        converts masks to the form of `gflow.attention`: causal, or an operand
empty_rows           rows without a visible key, with eager's results: NaN, or equal weights
masks                evaluates masks that depend only on constants and positions
index_masks          analyses masks that compare positions or numbers of documents
recognize_windows    converts these to attributes and operands of `gflow.attention`
narrow_masks         removes dimensions along which masks repeat
recognize_attention  replaces softmax(scale · q kᵀ + mask) v by one `gflow.attention`, and its gradients by one op
"""
